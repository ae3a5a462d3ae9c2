/*
 * plan/copies.h: which nodes get copies of what too few failure domains offer, evenly.
 */
#pragma once

#include "plan/offers.h"
#include "plan/save.h"

/*
 * Adds to the blocks of @plan the holders that they lack; their first holders and their uploaders are decided. An uploader
 * that does not hold its block yet gets a copy, the others go to whoever has received least so far.
 *
 * Offers take turns block by block, in proportion to their bytes. Were they served one after the other, the nodes of the last
 * would come short: they may not receive what they have, and nothing else would be left.
 *
 * 0 or -ENOMEM.
 */
int copies_place(const struct offers *offers, const struct save_facts *facts, struct save_plan *plan);
