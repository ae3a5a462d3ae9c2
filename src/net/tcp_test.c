/* The transport over tcp in the real world. */
#include "net/net_suite.h"

static void world_open(struct net_suite *suite)
{
	struct error e;
	int r = env_real_new("tcp-test", 1, &suite->server, &e);

	if (r)
		fail_msg("%s", e.text);
	suite->client = suite->server;
}

static void world_close(struct net_suite *suite)
{
	env_real_free(suite->server);
}

int main(void)
{
	struct net_suite suite = { .open = world_open, .close = world_close, .address = "tcp:127.0.0.1:0" };

	return net_suite_run("net over tcp", &suite, NULL, 0);
}
