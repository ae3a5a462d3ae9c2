#include "group/steps.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void steps_init(struct steps *steps)
{
	map_init(&steps->map);
	list_init(&steps->order);
}

static void step_drop(struct steps *steps, struct step *step)
{
	map_remove(&steps->map, view_buf(&step->key));
	list_remove(&step->link);
	buf_fini(&step->key);
	free(step->words);
	free(step);
}

void steps_fini(struct steps *steps)
{
	list_each(node, &steps->order)
		step_drop(steps, list_entry(node, struct step, link));
	map_fini(&steps->map);
}

void steps_move(struct steps *from, struct steps *to)
{
	struct list *node;

	to->map = from->map;
	map_init(&from->map);
	while ((node = list_pop(&from->order)))
		list_append(&to->order, node);
}

static int step_key(struct buf *out, struct view bundle, uint64_t step)
{
	uint8_t le[9] = { 0 };
	int r = buf_append(out, bundle.ptr, bundle.len);

	store_le64(le + 1, step);
	return r ? r : buf_append(out, le, sizeof(le));
}

/* 0, with NULL for a step that is not known; -ENOMEM. */
static int find(const struct steps *steps, struct view bundle, uint64_t number, struct step **ret)
{
	_cleanup_(buf_fini) struct buf key = { 0 };
	int r = step_key(&key, bundle, number);

	if (!r)
		*ret = map_get(&steps->map, view_buf(&key));
	return r;
}

static int add(struct steps *steps, struct view bundle, uint64_t number, struct step **ret)
{
	struct step *step = calloc(1, sizeof(*step));
	int r = step ? step_key(&step->key, bundle, number) : -ENOMEM;

	if (!r)
		r = map_put(&steps->map, view_buf(&step->key), step);
	if (r) {
		if (step)
			buf_fini(&step->key);
		free(step);
		return r;
	}
	list_append(&steps->order, &step->link);
	if (steps->map.n > STEPS_REMEMBERED_MAX)
		step_drop(steps, list_entry(steps->order.next, struct step, link));
	*ret = step;
	return 0;
}

int steps_check(const struct steps *steps, struct view bundle, uint64_t number, struct error *e)
{
	struct step *step;
	int r = find(steps, bundle, number, &step);

	if (r || !step)
		return r;
	if (step->code)
		return error_set(e, step->code, "%s", step->words ? step->words : error_meaning(step->code));
	return error_set(e, -ERR_ESTEP, "this run has already saved step %" PRIu64 " of %.*s", number, (int)bundle.len,
			 (const char *)bundle.ptr);
}

int steps_claim(struct steps *steps, struct view bundle, uint64_t number, struct error *e)
{
	struct step *step;
	int r = steps_check(steps, bundle, number, e);

	return r ? r : add(steps, bundle, number, &step);
}

void steps_fail(struct steps *steps, struct view bundle, uint64_t number, int code, const char *words)
{
	struct step *step = NULL;

	if (find(steps, bundle, number, &step) || (!step && add(steps, bundle, number, &step)) || step->code)
		return;
	step->code = code;
	step->words = strdup(words);
}

void steps_forget(struct steps *steps, struct view bundle, uint64_t number)
{
	struct step *step;

	if (!find(steps, bundle, number, &step) && step)
		step_drop(steps, step);
}
