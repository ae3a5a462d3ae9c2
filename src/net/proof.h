/*
 * net/proof.h: that whoever speaks knows the cluster's key, without saying it. Pure.
 *
 * A proof is the HMAC-SHA256, under the key, of who proves and of both greetings exactly as they went over the wire: each holds a
 * fresh nonce of its sender, the cluster, the node, the kind of connection. So a proof is worth nothing on another connection,
 * for another node or kind, or in the mouth of the one that it was said to.
 */
#pragma once

#include "base/bytes.h"
#include "base/hash.h"

#define PROOF_KEY_MIN 16 /* bytes of a key */
#define PROOF_KEY_MAX 1024

/* Outcome of proof_check(). */
enum { PROOF_WRONG = 1 };

enum proof_role { PROOF_DIALS = 1, PROOF_ACCEPTS = 2 };

struct proof_words { /* what both have said: BLAKE3 of the bodies of HELLO and of its reply */
	struct digest hello, reply;
};

/* 0, -ENOMEM. */
int proof_make(struct view key, enum proof_role role, const struct proof_words *words, struct digest *ret);
/* 0, PROOF_WRONG, -ENOMEM. Takes the same time wherever the first wrong byte is. */
int proof_check(struct view key, enum proof_role role, const struct proof_words *words, const struct digest *proof);
