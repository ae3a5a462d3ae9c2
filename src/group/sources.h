/*
 * group/sources.h: which of the nodes that sent copies were slow at it, by what their receivers saw. Pure.
 *
 * A source's pace is what it sent in the time that something of it was on its way, to the receiver that was longest at it; pace.h
 * says what is slow beside the others. A node that sends slowly mostly asks slowly, too, and then its sources seem to be what it is. So
 * what one that seems slow says of another such counts only if something came to it in time from somebody else.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sighting {
	uint32_t by, of; /* nodes */
	uint64_t bytes, busy_ns;
};

struct sources {
	struct sighting *seen;
	size_t n;
	bool missed; /* there was no memory for one: then nobody is judged, and nothing fails for that */
};

void sources_fini(struct sources *sources);
void sources_saw(struct sources *sources, const struct sighting *sighting);
/* ret_slow: per node, of @n_nodes, which all in the sightings are below. Nobody is where there is no memory to judge. */
void sources_judge(const struct sources *sources, size_t n_nodes, bool *ret_slow);
