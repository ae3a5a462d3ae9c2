#include "net/proof.h"

#include <assert.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#include "base/check.h"

#define LABEL	    "forebay peer 1" /* another use of the key, or another rule of what is proven, gets another */
#define LABEL_BYTES 16		     /* with zeros at its end */

struct proven {
	char label[LABEL_BYTES];
	uint8_t role[8]; /* little-endian */
	struct digest hello, reply;
};
static_assert(sizeof(struct proven) == LABEL_BYTES + 8 + 2 * DIGEST_BYTES, "bytes only, no padding");

int proof_make(struct view key, enum proof_role role, const struct proof_words *words, struct digest *ret)
{
	struct proven proven = { .label = LABEL, .hello = words->hello, .reply = words->reply };
	unsigned len = 0;

	CHECK(key.len >= PROOF_KEY_MIN && key.len <= PROOF_KEY_MAX);
	store_le64(proven.role, role);
	if (!HMAC(EVP_sha256(), key.ptr, (int)key.len, (const uint8_t *)&proven, sizeof(proven), ret->b, &len))
		return -ENOMEM;
	CHECK(len == sizeof(ret->b));
	return 0;
}

int proof_check(struct view key, enum proof_role role, const struct proof_words *words, const struct digest *proof)
{
	struct digest right;
	int r = proof_make(key, role, words, &right);

	if (r)
		return r;
	r = CRYPTO_memcmp(right.b, proof->b, sizeof(right.b));
	OPENSSL_cleanse(&right, sizeof(right));
	return r ? PROOF_WRONG : 0;
}
