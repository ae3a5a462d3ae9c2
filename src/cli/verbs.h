/*
 * cli/verbs.h: the verbs, one file each. The table yields the declarations, the dispatch and the list in `forebay --help`.
 */
#pragma once

/*        name      summary */
#define VERB_TABLE(X)                                                                    \
	X(up, "start a cluster of N daemons on this machine")                            \
	X(down, "end the daemons that `up` started")                                     \
	X(status, "show the cluster, its nodes and the saves in flight")                 \
	X(why, "show station by station how long a save took, and where")                \
	X(top, "watch nodes and saves, with rates, each second")                         \
	X(ls, "list bundles, versions and labels")                                       \
	X(show, "show a version and its items")                                          \
	X(put, "store files and folders as a new version; returns when durable")         \
	X(get, "write a version's files into a folder, as they were")                    \
	X(export, "write a version's tensors as safetensors, or its items as raw files") \
	X(verify, "check every block of a version against its digest")                   \
	X(label, "show, set or remove a label")                                          \
	X(rm, "delete a version")                                                        \
	X(retain, "say which versions of a bundle are kept")                             \
	X(gc, "apply rules, and free what nothing in the store needs")                   \
	X(meta, "meta rebuild: make the index again from the store")

#define X(name, summary) int verb_##name(int argc, char **argv);
VERB_TABLE(X)
#undef X
