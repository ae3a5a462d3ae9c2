/*
 * net/refusal.h: whom a node has turned away, and why: counted by reason, and told in the log, each reason at most once a minute, so
 * that nobody can fill a disk by knocking.
 */
#pragma once

#include <stdint.h>

/* A counter's name is <door>_refused_<name>: "peer_refused_proof".
 *        reason        name           help */
#define REFUSAL_TABLE(X)                                                                                              \
	X(GARBAGE, "garbage", "connections that sent what is no frame: wrong magic, sums or sizes")                   \
	X(VERSION, "version", "connections that speak no protocol that this node speaks")                             \
	X(HELLO, "hello", "connections that did not begin with a HELLO that can be read")                             \
	X(CLUSTER, "cluster", "peers of another cluster")                                                             \
	X(NODE, "node", "peers whose name is none, or this node's own")                                               \
	X(UNPROVEN, "unproven", "peers that bring no challenge: they have no key, or are of an older release")        \
	X(PROOF, "proof", "peers whose proof is wrong: they have another key, or replay or reflect what was said")    \
	X(STALE, "stale", "peers of an incarnation that is over, and their requests of a generation that is over")    \
	X(USER, "user", "clients whose user is not on the list of the tenant's socket")                               \
	X(SILENT, "silent", "connections that did not introduce themselves in time, or fell silent within a message") \
	X(ORDER, "order", "connections that sent what cannot come there: answers, too many messages in parts")        \
	X(LIMIT, "limit", "connections and requests beyond a limit")                                                  \
	X(DEAF, "deaf", "clients that do not read what they are told")                                                \
	X(BODY, "body", "requests whose body cannot be read")                                                         \
	X(TYPE, "type", "requests of a type that is not served there")                                                \
	X(STRANGE, "strange", "requests that name what is not the caller's: groups, saves, loads, versions, spans")

enum refusal {
#define X(reason, name, help) REFUSAL_##reason,
	REFUSAL_TABLE(X)
#undef X
		REFUSALS,
};

extern const char *const refusal_names[REFUSALS];

struct refusals { /* zeroed at first */
	uint64_t counts[REFUSALS];
	uint64_t told_ns[REFUSALS]; /* 0: never */
};

/* @at: "peer", "door". The words say who and why. */
void refusal_note(struct refusals *refusals, const char *at, enum refusal reason, uint64_t now_ns, const char *words);
