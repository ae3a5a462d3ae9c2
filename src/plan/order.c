#include "plan/order.h"

#include <errno.h>

#include "plan/array.h"

int order_by(const uint32_t *keys, size_t n, size_t n_keys, uint32_t *ret)
{
	_cleanup_(cleanup_mem) size_t *first = array_new(n_keys + 1, sizeof(*first));

	if (!first)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (keys[i] < n_keys)
			first[keys[i] + 1]++;
	}
	for (size_t k = 0; k < n_keys; k++)
		first[k + 1] += first[k];
	for (size_t i = 0; i < n; i++) {
		if (keys[i] < n_keys)
			ret[first[keys[i]]++] = (uint32_t)i;
	}
	return 0;
}
