/*
 * plan/uploads.h: the fluid half of a save plan: how many bytes of each offer every node uploads.
 */
#pragma once

#include <stdint.h>

#include "plan/deal.h"
#include "plan/offers.h"

/*
 * An offer from at least R failure domains is uploaded by its own nodes. One from fewer has copies on other nodes anyway, and
 * they upload as well as its own: any node outside its domains will do. Own nodes are preferred where that costs no time.
 *
 * The deal is by offer and position. 0, LEVEL_NO_RATE or -ENOMEM; on anything but 0 the outputs are untouched.
 */
int uploads_share(const struct offers *offers, const struct save_facts *facts, struct deal *ret,
		  uint64_t *ret_bound_ns);
