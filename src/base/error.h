/*
 * base/error.h: what went wrong, decided once.
 *
 * Functions return 0, a negative errno, or one of the negative codes below; the text goes along in a struct error that
 * the caller lends. The text is set where the error is decided and names the thing and the exact cause; whoever passes
 * the code up leaves the text alone. NULL is accepted everywhere: the caller does not want the words.
 *
 * ERROR_TABLE is the one list of Forebay's own codes: it yields the numbers, the public names in forebay.h (asserted
 * equal), error_name() and the page docs/troubleshooting.md.
 */
#pragma once

#include <stdarg.h>
#include <stddef.h>

#define ERROR_TEXT_MAX 512 /* bytes with the final 0; longer texts are cut and end in "..." */

/*        name          number  meaning */
#define ERROR_TABLE(X)                                                                                     \
	X(EREPLICA, 4096, "equal boxes of one item hold different bytes on two ranks")                     \
	X(EOVERLAP, 4097, "two boxes of one item overlap without being equal")                             \
	X(ERANK, 4098, "a rank of the group died, is missing, or was named twice")                         \
	X(ENODE, 4099, "a node that held the only copy of some bytes was lost")                            \
	X(EDAMAGED, 4100, "stored bytes do not match their digest")                                        \
	X(ESTALEEPOCH, 4101, "the caller was overtaken by a newer coordinator, incarnation or generation") \
	X(ESTEP, 4102, "this run has already saved this step of this bundle")                              \
	X(EUNINDEXED, 4103, "the version is published, but its index entry could not be written yet")      \
	X(EDELETED, 4104, "the version was deleted")                                                       \
	X(EFORKED, 4105, "the session belongs to the parent of this process")                              \
	X(EVERSION, 4106, "the other side speaks no protocol version that this side knows")                \
	X(EMISMATCH, 4107, "name, dtype or shape do not fit what is stored or what other ranks said")      \
	X(EPOOL, 4108, "the group's bytes can never fit into a node's pool")                               \
	X(ECHANGED, 4109, "captured bytes were changed by the application after they had been captured")   \
	X(EREBUILD, 4110, "the index is missing or older than the store; run forebay meta rebuild")        \
	X(ESKIPPED, 4111, "there was no room for the save, which was to be skipped then")                  \
	X(ESUPERSEDED, 4112, "the save was dropped, before it was durable, for a newer one of its group")

enum {
#define X(name, number, text) ERR_##name = number,
	ERROR_TABLE(X)
#undef X
};

struct error {
	int code; /* 0: nothing failed yet */
	char text[ERROR_TEXT_MAX];
};

/*
 * Sets @e (which may be NULL) and returns @code, so that `return error_set(e, -ENOENT, "...", ...)` reads well. @code
 * is negative (checked: a lost minus would turn a failure into an outcome).
 */
int error_set(struct error *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/*
 * Puts "prefix: " before the text that @e already has: for callers that know the thing's name. Returns @e's code, or
 * -EIO when @e is NULL or holds none: never 0, but a caller that has the code returns its own.
 */
int error_prefix(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* "ENOENT", "FOREBAY_EREPLICA", for positive or negative @code; "OK" for 0, "E?" for an unknown one. Never NULL. */
const char *error_name(int code);
/* A sentence for @code (own codes from the table, errno from the C library). Never NULL; static storage. */
const char *error_meaning(int code);
