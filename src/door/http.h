/*
 * door/http.h: the way in for those who watch: /metrics, /healthz and /readyz over HTTP. It changes nothing and tells no names but nodes'.
 *
 * Each connection has a thread of its own, of at most HTTP_CONNECTIONS_MAX, and carries one request; the loop is asked for what only
 * it knows, with a deadline. So a slow or hostile client costs its own connection, and a loop that hangs is told as such.
 */
#pragma once

#include "env/env.h"

#define HTTP_CONNECTIONS_MAX 16	  /* at a time; when they are taken, the oldest that is past HTTP_WHOLE_MS makes room */
#define HTTP_HEAD_MAX	     8192 /* bytes of a request's head, and of what is needed to answer it */
#define HTTP_IDLE_S	     3	  /* without a byte */
#define HTTP_WHOLE_MS	     5000 /* for a whole request, if others wait */
#define HTTP_ASK_MS	     2000 /* for the loop to answer /metrics */
#define HTTP_READY_MS	     5000 /* for all of /readyz */

struct door_http;

struct door_http_options {
	const char *address;	    /* "PORT": on 127.0.0.1; "ADDRESS:PORT", "[ADDRESS]:PORT"; port 0 picks one */
	void (*gauges)(void *arg);  /* on the loop: sets what counter_expose() is to show as it is now */
	void (*measure)(void *arg); /* after it, on a thread of the door's: what needs no loop, and may read files */
	/* In a fiber, may wait: 0, or in words what this node cannot use. */
	int (*ready)(void *arg, uint64_t deadline_ns, struct error *e);
	void *arg;
};

/* Listens. Words name the address. */
int door_http_new(struct env *env, const struct door_http_options *options, struct door_http **ret, struct error *e);
const char *door_http_address(const struct door_http *door); /* "ADDRESS:PORT", with the port that it got */
void door_http_stop(struct door_http *door);		     /* waits in a fiber: no connection is left */
void door_http_free(struct door_http *door);		     /* accepts NULL; stopped */
