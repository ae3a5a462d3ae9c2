/*
 * wire/message.h: every message, as one table of fields each. From the tables come the structs, the encoders and the decoders
 * and the fuzz target; docs/formats.md has the rules of fields and refers to here.
 *
 *	struct msg_join m = { .group = view_str("job-17"), ... };
 *	r = msg_join_encode(&m, &out);			appends the body
 *	r = msg_join_decode(body, &m);			views into body
 *	r = elem_item_append(&list, &item);		for list elements
 *
 * Two conversations share the format: a client with its daemon (native door), and daemons among themselves (peers). Each
 * request has one reply of the same type with FRAME_REPLY (msg_<name>_reply; "empty" where there is nothing to say) or a
 * msg_failure with FRAME_FAILED. Bodies longer than FRAME_BODY_MAX are cut into frames of the same request with FRAME_MORE.
 */
#pragma once

#include "wire/codec.h"

/* Tables are laid out by hand: the formatter would do it anew at each run. */
/* clang-format off */
/* Frame types: number, name. Numbers are never reused. An unknown type is answered -ENOSYS. */
#define MSG_TYPES(X)                                                                         \
	X(1, HELLO)    /* both: msg_hello -> msg_hello_reply */                              \
	X(2, PING)     /* both: empty -> empty */                                            \
	X(3, PROVE)    /* peers, after HELLO: msg_prove -> msg_prove (net/greet.h) */        \
	/* client -> daemon */                                                               \
	X(16, JOIN)    /* msg_join -> msg_join_reply, when every rank of the run has come */ \
	X(17, LEAVE)   /* msg_handle -> empty */                                             \
	X(18, SAVE)    /* msg_save -> msg_save_reply: the offer whole; or "send the items" */ \
	X(19, FILLED)  /* msg_filled -> empty */                                             \
	X(20, CANCEL)  /* msg_cancel -> empty */                                             \
	X(21, OPEN)    /* msg_open -> msg_open_reply */                                      \
	X(22, ITEMS)   /* msg_items -> msg_items_reply */                                    \
	X(23, CLOSE)   /* msg_handle (a version) -> empty */                                 \
	X(24, LOAD)    /* msg_load -> empty; the load's end comes as LOAD_END */             \
	X(25, RELEASE) /* msg_release -> empty */                                            \
	X(26, LIST)    /* msg_list -> msg_list_reply */                                      \
	X(27, LABEL)   /* msg_label -> empty */                                              \
	X(28, DELETE)  /* msg_delete -> empty */                                             \
	X(29, STATUS)  /* empty -> msg_status_reply */                                       \
	X(30, VERIFY)  /* msg_verify -> msg_verify_reply */                                  \
	X(31, REBUILD) /* empty -> msg_rebuild_reply; of a daemon: to the engine's node */    \
	X(32, RETAIN)  /* msg_retain -> empty */                                             \
	X(33, COLLECT) /* msg_collect -> msg_collect_reply */                                \
	X(40, TRACE)   /* msg_trace -> msg_trace_reply */                                    \
	X(41, FORGO)   /* msg_forgo -> empty: what the other ranks wait for will not come from this one */ \
	/* daemon -> client, without a reply; request = the client's number of the save or load */ \
	X(48, ARENA)   /* msg_arena, with a descriptor */                                    \
	X(49, GRANT)   /* msg_grant: spans to fill */                                        \
	X(50, STAGE)   /* msg_stage: a future of a save has completed */                     \
	X(51, BLOCKS)  /* msg_blocks: spans to read */                                       \
	X(52, LOAD_END) /* msg_load_end */                                                   \
	/* daemon -> daemon */                                                               \
	X(64, META)    /* msg_meta -> msg_meta_reply */                                      \
	X(65, FETCH)   /* msg_fetch -> msg_fetch_reply, after the bytes went by bulk */      \
	X(66, G_JOIN)  /* msg_g_join -> msg_join_reply. To the coordinator, as the next ones */ \
	X(67, G_OFFER) /* msg_g_offer -> msg_save_reply */                                   \
	X(68, G_LOST)  /* msg_g_lost -> empty: a rank of this node is gone */                \
	X(69, G_WANT)  /* msg_g_want -> msg_g_want_reply: the node's steps of a grouped load */ \
	X(70, G_RESERVE) /* msg_g_reserve -> msg_g_reserve_reply. From the coordinator, as the next ones */ \
	X(71, G_CAPTURE) /* msg_g_capture -> msg_g_capture_reply */                          \
	X(72, G_DIGEST) /* msg_save_id -> msg_g_capture_reply: hash what a hinted capture copied */ \
	X(73, G_COPY)  /* msg_g_copy -> msg_g_copy_reply */                                  \
	X(74, G_UPLOAD) /* msg_g_upload -> msg_g_pace_reply */                               \
	X(75, G_STAGE) /* msg_g_stage -> empty */                                            \
	X(76, G_FAIL)  /* msg_g_stage -> empty. To the coordinator: a rank cancels a save */ \
	X(77, G_ASK)   /* msg_g_ask -> msg_g_end; -ENOENT. To the coordinator: how is the save */ \
	X(78, G_KEEP)  /* msg_g_keep -> msg_save_reply. From the coordinator: what a successor needs */ \
	X(79, G_RECOVER) /* msg_g_recover -> msg_g_recover_reply. From a successor, as the next ones: what is under way */ \
	X(80, G_KEPT)  /* msg_save_id -> msg_g_keep */                                       \
	X(81, G_HELD)  /* msg_save_id -> msg_numbers: the blocks that the node holds */ \
	X(84, G_WAVE)  /* msg_g_wave -> empty. From the coordinator: room for some blocks of a save that goes through */ \
	X(85, G_RELEASE) /* msg_g_wave -> empty: they are stored, and take no room any more */ \
	X(88, G_STAGED) /* msg_g_staged -> msg_g_staged_reply; -ENOENT. To the coordinator: the newest save that is staged */ \
	X(89, G_PACE)  /* msg_g_pace -> msg_g_pace_reply. From the coordinator: how far are the packs; give them up */ \
	X(96, G_TRACE) /* msg_g_trace -> msg_trace_reply: what the node coordinates, or did */ \
	X(97, G_FORGO) /* msg_g_forgo -> empty. To the coordinator: a rank will not ask for its part of a load */

/* clang-format on */
enum msg_type {
#define X(number, name) MSG_##name = number,
	MSG_TYPES(X)
#undef X
};
const char *msg_type_name(unsigned type); /* "JOIN", or "?" */

/* clang-format off */

/* ---- bodies: MSG_LIST names them all; each table lists fields in their order on the wire ------------------------------ */

#define MSG_failure(F) F(u32, code) F(str, words) /* code: positive, an errno or one of error.h */

/* kind 0: a client; 1: a peer's control connection; 2: a peer's bulk connection (which carries chunks after the reply). */
#define MSG_hello(F)                                                                                                     \
	F(u8, kind) F(u32, major_min) F(u32, major_max) F(str, cluster) F(u32, generation) F(str, node) \
	F(u64, incarnation) F(digest, nonce) /* nonce: all zero where no key is to be proven */
#define MSG_hello_reply(F)                                                                                          \
	F(u32, major) F(str, cluster) F(u32, generation) F(str, node) F(u64, incarnation)            \
	F(digest, nonce)
#define MSG_prove(F) F(digest, proof)

#define MSG_join(F)	  F(str, group) F(str, run) F(u32, rank) F(u32, size)
#define MSG_join_reply(F) F(u64, handle) F(u64, incarnation) F(u64, epoch) F(u32, here) /* ranks on the caller's node */
#define MSG_handle(F)	  F(u64, handle)
#define MSG_empty(F)

/* An item as one rank offers it. flags: ITEM_LOWEST_WINS. */
#define ELEM_item(F) F(str, name) F(str, dtype) F(u32, element_bits) F(u32, flags) F(box, whole) F(box, box)
#define ELEM_attribute(F) F(str, key) F(str, value)

/*
 * A rank's offer. save: the client's own number for it, rising per session. structure: XXH3 of the items' list; when items is
 * empty and the offer is hinted, the daemon takes the list that it remembers under that number, or answers need_items = 1.
 */
#define MSG_save(F)                                                                                                       \
	F(u64, group) F(u64, save) F(str, bundle) F(u64, step) F(u32, copies) F(u32, policy) F(u32, flags) F(u64, parent) \
	F(list, attributes) F(u64, structure) F(u32, n_items) F(list, items)
#define MSG_save_reply(F) F(u32, need_items) F(u64, save_id)

/* A span to fill: bytes [offset, offset + bytes) of the rank's item number `item`. arena 0: hash only, nothing to copy. */
#define ELEM_grant(F) F(u32, item) F(u32, block) F(u64, offset) F(u32, bytes) F(u64, arena) F(u64, arena_offset)
#define MSG_grant(F)  F(u32, mode) F(u32, last) F(list, grants)
#define ELEM_filled(F) F(u32, block) F(u32, crc) F(u32, flags) F(u64, sample) F(digest, digest)
#define MSG_filled(F)  F(u64, group) F(u64, save) F(list, filled)
/*
 * number: the client's, of a save (then group is that save's) or of a load (group is 0); 0: the save of that bundle and step, which
 * the rank will not offer. Says also that the client touches no span of it any more: it ends every load, and every save that failed
 * before it was captured.
 */
#define MSG_cancel(F) F(u64, group) F(u64, number) F(str, bundle) F(u64, step) F(str, words) /* why; may be empty */

/*
 * A request of this rank was refused, and others wait for what it would have done. name, run, rank: it will not JOIN that group. Else
 * group: it will not take its part in the next grouped load of an opened version (its handle); or, version 0, of the one that bundle
 * and spec would have opened.
 */
#define MSG_forgo(F) \
	F(u64, group) F(u64, version) F(str, bundle) F(str, spec) F(str, name) F(str, run) F(u32, rank) F(str, words)

#define MSG_arena(F) F(u64, arena) F(u64, bytes) F(u32, writable)
#define MSG_stage(F)                                                                                                   \
	F(u32, stage) F(u32, code) F(str, words) F(u64, version) F(u64, save_id) F(list, stats)
#define ELEM_stat(F) F(str, name) F(u64, value)

/* version: a number in decimal, a label, "latest". */
#define MSG_open(F) F(str, bundle) F(str, version) F(u64, group)
#define MSG_open_reply(F)                                                                                            \
	F(u64, handle) F(u64, number) F(u64, step) F(u64, n_items) F(u64, bytes) F(list, attributes) F(u32, unindexed)
/* name not empty: that item alone (-ENOENT); else up to limit items with names greater than after. */
#define MSG_items(F)	   F(u64, version) F(str, name) F(str, after) F(u32, limit)
/* unsaved_bytes: of the bytes, those that no rank offered. */
#define ELEM_item_info(F) \
	F(str, name) F(str, dtype) F(u32, element_bits) F(box, whole) F(u64, bytes) F(u32, n_pieces) F(u64, unsaved_bytes)
#define MSG_items_reply(F) F(list, items) F(u32, more) /* more: this page is not the last */

/* A grouped load when group is not 0: the ranks' nth load of that version in this incarnation belong together. */
#define ELEM_want(F) F(str, name) F(box, box)
#define MSG_load(F)  F(u64, load) F(u64, group) F(u64, version) F(list, wants)
/*
 * Bytes to copy: `bytes` bytes at arena_offset, which are [offset, offset + bytes) of the piece with box `piece` of the item of
 * want number `want`. arena 0: all zero. token: what RELEASE names when the copy is done.
 */
#define ELEM_block(F)	F(u32, want) F(box, piece) F(u64, offset) F(u32, bytes) F(u64, arena) F(u64, arena_offset) F(u64, token)
#define MSG_blocks(F)	F(list, blocks)
#define ELEM_token(F)	F(u64, token)
#define MSG_release(F)	F(u64, load) F(list, tokens)
#define MSG_load_end(F) F(u32, code) F(str, words) F(list, stats)

/* bundle empty: bundles with prefix after `after`; else that bundle's versions with numbers greater than after_number. */
#define MSG_list(F)	  F(str, prefix) F(str, bundle) F(str, after) F(u64, after_number) F(u32, limit)
#define ELEM_bundle(F)	  F(str, name) F(u64, n_versions) F(u64, latest) F(u64, keep_last) F(u64, keep_every)
#define ELEM_label(F)	  F(str, label) F(u64, number)
#define ELEM_version(F)	  F(u64, number) F(u64, step) F(u64, n_items) F(u64, bytes) F(u64, stored_bytes) F(list, attributes)
#define MSG_list_reply(F) F(list, bundles) F(list, versions) F(list, labels) F(u32, more)
/* expect: the number that the label has now; 0: none; UINT64_MAX: whatever. number 0 removes the label. */
#define MSG_label(F)  F(str, bundle) F(str, label) F(u64, expect) F(u64, number)
#define MSG_delete(F) F(str, bundle) F(u64, number)

#define ELEM_node(F)                                                                                                       \
	F(str, name) F(str, address) F(str, domain) F(u64, incarnation) F(u32, up) F(u64, pool_bytes) F(u64, pool_used_bytes) \
	F(str, http) F(u32, clients) F(u64, captured_bytes) F(u64, copied_bytes) F(u64, uploaded_bytes) F(u64, read_bytes) \
	F(u32, clients_stopped) F(u32, silent) F(u64, unheard_ms) /* silent: up, and said nothing of itself in time */
#define ELEM_save_status(F) F(u64, save_id) F(str, group) F(str, bundle) F(u64, step) F(str, state) F(u64, bytes)
/* index_words: not empty when the index cannot be reached, why; then the node with its engine, which may not have said its name yet.
 * not_joined: why this node serves nothing else yet, or "". */
#define MSG_status_reply(F)                                                                                            \
	F(str, node) F(str, cluster) F(u32, generation) F(list, nodes) F(list, saves) F(list, counters)                \
	F(str, index_words) F(str, index_node) F(str, index_address) F(u64, index_unheard_ms) \
	F(str, not_joined)

#define MSG_verify(F)	    F(str, bundle) F(u64, number)
#define ELEM_damage(F)	    F(str, object) F(str, item) F(u64, block) F(str, words)
#define MSG_verify_reply(F) F(u64, number) F(u64, blocks) F(u64, bytes) F(list, damages)
#define MSG_rebuild_reply(F) F(u64, bundles) F(u64, versions) F(u64, labels) F(u32, generation)

/* keep_last 0: all versions stay. */
#define MSG_retain(F) F(str, bundle) F(u64, keep_last) F(u64, keep_every)
/* bundle empty: all of the tenant's. counts: by name. unclear: keys, the first of them. */
#define MSG_collect(F)	     F(str, bundle)
#define MSG_collect_reply(F) F(list, counts) F(list, unclear)
/*
 * How saves went: that with save_id; those that published `version` of the bundle; or with neither, those of now. at_ns, took_ns: since the
 * save began; rank UINT32_MAX: none. silent: nodes that did not answer, which may know more.
 */
#define ELEM_station(F) F(str, name) F(u64, at_ns) F(u64, took_ns)
#define ELEM_hop(F)	F(str, station) F(str, node) F(u64, took_ns) F(u64, bytes) F(u32, rank)
#define ELEM_trace(F)                                                                                                    \
	F(u64, save_id) F(str, node) F(str, group) F(str, bundle) F(u64, step) F(u64, version) F(str, state) F(u32, code) \
	F(str, words) F(u32, ended) F(u32, n_ranks) F(u32, n_nodes) F(u32, copies) F(u64, offered_bytes) F(u64, unique_bytes) \
	F(u64, stored_bytes) F(u64, took_ns) F(u64, bound_ns) F(u64, planned_ns) F(list, stations) F(list, hops)
#define MSG_trace(F)	   F(u64, save_id) F(str, bundle) F(u64, version)
#define MSG_trace_reply(F) F(list, traces) F(list, silent)

/* ---- peers -------------------------------------------------------------------------------------------------------------- */

/* STATUS between daemons: what the node has to say to that tenant; whole: of all tenants together, too. */
#define MSG_peer_status(F) F(str, tenant) F(u8, whole)
#define MSG_meta(F)	  F(u8, op) F(str, in)
#define MSG_meta_reply(F) F(u32, outcome) F(str, out)
/* The holder pins the block and sends it as transfer `transfer` on the requester's bulk connection. */
#define MSG_fetch(F)	   F(digest, digest) F(u32, bytes) F(u64, transfer) F(u32, wait_ms) F(str, tenant) /* whose block it is */
#define MSG_fetch_reply(F) F(u32, crc)

/* joiner: drawn by the rank's node, so that one that asks again, since its answer was lost, is not taken for another. */
#define MSG_g_join(F) F(str, tenant) F(str, group) F(str, run) F(u32, rank) F(u32, size) F(str, node) F(u64, joiner)

/* A node's merged offer: each of its ranks with its list, or with its structure alone when hinted. */
#define ELEM_rank_offer(F) F(u32, rank) F(u64, structure) F(u32, n_items) F(list, items)
#define MSG_g_offer(F)                                                                                                   \
	F(str, tenant) F(str, group) F(u64, incarnation) F(str, node) F(str, bundle) F(u64, step) F(u32, copies)         \
	F(u32, policy) F(u32, flags) F(u64, parent) F(list, attributes) F(list, ranks) F(u64, arena_bytes)
/* incarnation 0: the rank went before it knew; then run says of which.
 * forgone: it did not come, and will not; the others of the run need not wait for it.
 * joiner: that of its G_JOIN, so that no other which has joined since is meant; 0: none of this rank's came so far, or an older daemon's. */
#define MSG_g_lost(F)                                                                                           \
	F(str, tenant) F(str, group) F(u64, incarnation) F(u32, rank) F(str, words) F(str, run) F(u32, forgone) \
	F(u64, joiner)

/*
 * A node's part of the plan: what its ranks capture or check, and what it will receive as copies; room is made for all of it. When
 * `cached` is 1 the lists are empty and the node takes those that it remembers under the number `plan`, or answers need_items = 1.
 * queue: wait for the turn, behind other saves; room_ms: then for room. `full`: there was none, why in words; the coordinator may ask
 * again by the save_id, and who queued keeps its turn until then. waves: no room yet, G_WAVE asks for that of some blocks at a time.
 * block: number in the save's plan. mode: CAPTURE_COPY, CAPTURE_CHECK (a replica that is only hashed).
 */
#define ELEM_g_block(F)	  F(u32, block) F(u32, rank) F(u32, item) F(u64, offset) F(u32, bytes) F(u32, mode)
#define ELEM_g_receive(F) F(u32, block) F(u32, bytes)
#define MSG_g_reserve(F)                                                                                           \
	F(str, tenant) F(str, group) F(u64, incarnation) F(u64, save_id) F(str, bundle) F(u64, step) F(u64, plan) \
	F(u32, cached) F(list, blocks) F(list, receives) F(u32, queue) F(u32, room_ms) F(u64, epoch) F(u32, waves)
#define MSG_g_reserve_reply(F) F(u32, need_items) F(u32, full) F(str, words)
#define MSG_g_capture(F) F(u64, save_id) F(u32, hinted) F(u64, epoch) F(u32, first) F(u32, last)
/* Blocks of the plan from first to before last. In G_CAPTURE, last 0: all of them. */
#define MSG_g_wave(F) F(u64, save_id) F(u64, epoch) F(u32, first) F(u32, last)
/* In docs/formats.md: one report of a block for all ranks of the node that say the same, one for each that says something else. */
#define ELEM_g_filled(F)       F(u32, block) F(u32, rank) F(u32, crc) F(u32, flags) F(u64, sample) F(digest, digest)
#define MSG_g_capture_reply(F) F(list, filled) F(u64, bytes) F(u32, last_rank) /* captured there; the last rank to be done */
#define MSG_save_id(F)	       F(u64, save_id) F(u64, epoch)
#define ELEM_g_copy(F)	       F(u32, block) F(digest, digest) F(u32, bytes) F(u32, crc) F(u32, from) F(u32, other)
#define ELEM_name(F)	       F(str, name)
/* from: index into nodes; other: 1 + that of a node to ask if the first is slow, or 0. A node that the plan did not name learns here of which save it holds copies. */
#define MSG_g_copy(F)                                                                                          \
	F(u64, save_id) F(list, nodes) F(list, blocks) F(u64, epoch) F(str, tenant) F(str, group) F(u64, incarnation) \
	F(str, bundle) F(u64, step)
#define MSG_numbers(F)	       F(list, numbers) /* of u32 */
/* made: numbers of the blocks that came, u32. sources: what came from each node of the order's, and how long something was on its way. */
#define ELEM_g_source(F)       F(u32, node) F(u64, bytes) F(u64, busy_ns)
#define MSG_g_copy_reply(F)    F(list, made) F(list, sources)
#define ELEM_g_put(F)	       F(digest, digest) F(u64, pack_offset) F(u32, bytes) F(u32, crc)
#define MSG_g_upload(F)	       F(u64, save_id) F(str, key) F(list, blocks) F(u64, epoch) F(u64, number)
/*
 * give_up: the packs of the save that are being written here are not wanted any more. In the answer, bytes: that the store has taken of
 * those; given_up: to G_UPLOAD, the pack was given up and others write it.
 */
#define MSG_g_pace(F)	       F(u64, save_id) F(u64, epoch) F(u32, give_up)
#define MSG_g_pace_reply(F)    F(u64, bytes) F(u32, given_up)
#define MSG_g_stage(F)                                                                                                   \
	F(str, tenant) F(str, group) F(u64, incarnation) F(u64, save_id) F(str, bundle) F(u64, step) F(u32, stage)      \
	F(u32, code) F(str, words) F(u64, version) F(list, stats) F(u64, epoch)
#define MSG_g_ask(F) F(u64, save_id) F(str, tenant) F(str, group)
#define MSG_g_end(F) F(u32, stage) F(u32, code) F(str, words) F(u64, version) /* stage: a state that it has reached */

/*
 * What a successor needs to finish a captured save: lists, nodes and copies, from which it makes the same plan (fingerprint), and what
 * was captured. When `cached` is 1, ranks and places are empty and the keeper takes those that it has under `structure`, or answers
 * need_items = 1. rank_node: u32 per rank, into places. reports: per block of the plan. slot: the number that was opened for it; a
 * G_KEEP with fingerprint 0 tells that number alone.
 */
#define ELEM_place(F)  F(str, node) F(u32, domain) F(u64, store_rate)
#define ELEM_report(F) F(digest, digest) F(u32, crc) F(u32, flags) F(u32, rank)
#define MSG_g_keep(F)                                                                                              \
	F(u64, save_id) F(u64, epoch) F(str, tenant) F(str, group) F(u64, incarnation) F(str, bundle) F(u64, step)    \
	F(u32, copies) F(u32, policy) F(u32, flags) F(u64, parent) F(list, attributes) F(u64, structure)            \
	F(u64, fingerprint) F(u32, cached) F(list, ranks) F(list, places) F(list, rank_node) F(list, reports)       \
	F(u64, diverged_blocks) F(u64, slot) F(u32, block_bytes)
#define MSG_g_recover(F)       F(str, tenant) F(str, group) F(u64, epoch)
#define ELEM_g_recovered(F)    F(u64, save_id) F(u32, kept) F(str, bundle) F(u64, step) /* kept: this node has its G_KEEP */
/* Saves that this node coordinated and that have ended: no successor takes them up again. */
#define ELEM_g_ended(F)	       F(u64, save_id) F(u32, stage) F(u32, code) F(str, words) F(u64, version)
#define MSG_g_recover_reply(F) F(list, saves) F(list, ended)

#define MSG_g_staged(F)	       F(str, tenant) F(str, group) F(str, bundle)
/* keep: a G_KEEP's body. holders: u32 per block of the plan, into its places; UINT32_MAX: a hole. */
#define MSG_g_staged_reply(F)  F(str, keep) F(list, holders)

/* A node's needs of a grouped load: numbers of blocks in the version's table. */
#define ELEM_u32(F)	    F(u32, v)
#define MSG_g_want(F)                                                                                              \
	F(str, tenant) F(str, group) F(u64, incarnation) F(str, bundle) F(u64, version) F(u64, nth) F(u32, n_ranks) \
	F(list, blocks) F(list, held) F(u64, save_id) F(u64, turn) /* held: those of blocks that the node has already; version 0: staged */
#define ELEM_step(F)	    F(u32, block) F(u32, source) /* index into nodes, or UINT32_MAX: the store */
#define MSG_g_want_reply(F) F(list, nodes) F(list, steps)

#define MSG_g_trace(F) F(str, tenant) F(u64, save_id) F(str, bundle) F(u64, version)

/* The nth grouped load of that version does not come to a plan: words name the rank and why. turn: it is counted since then (group/nth.h). */
#define MSG_g_forgo(F) \
	F(str, tenant) F(str, group) F(u64, incarnation) F(u64, save_id) F(u64, nth) F(str, words) F(u64, turn)

/* clang-format on */

enum item_flags { ITEM_LOWEST_WINS = 1 };    /* the lowest rank's bytes count, others are not looked at */
enum save_flags { SAVE_SAME_STRUCTURE = 1 }; /* HINT */
enum save_policy { POLICY_WAIT, POLICY_SKIP, POLICY_REPLACE, POLICY_THROUGH, POLICIES }; /* when there is no room */
enum grant_mode { GRANT_FULL, GRANT_HINTED }; /* hinted: copy and sample, no digests */
enum filled_flags { FILLED_ZERO = 1 };	      /* every byte is 0: a hole */
enum capture_mode { CAPTURE_COPY, CAPTURE_CHECK };

/* clang-format off */
#define MSG_LIST(X)                                                                                                        \
	X(failure) X(hello) X(hello_reply) X(join) X(join_reply) X(handle) X(empty) X(save) X(save_reply) X(grant) X(filled) \
	X(arena) X(stage) X(open) X(open_reply) X(items) X(items_reply) X(load) X(blocks) X(release) X(load_end) X(list)   \
	X(list_reply) X(label) X(delete) X(status_reply) X(verify) X(verify_reply) X(rebuild_reply) X(meta) X(meta_reply)   \
	X(fetch) X(fetch_reply) X(g_join) X(g_offer) X(g_lost) X(g_reserve) X(g_capture) X(g_capture_reply) X(save_id)     \
	X(g_copy) X(g_upload) X(g_stage) X(g_want) X(g_want_reply) X(cancel) X(prove) X(g_reserve_reply) X(retain) X(collect) \
	X(collect_reply) X(numbers) X(g_ask) X(g_end) X(g_keep) X(g_recover) X(g_recover_reply) X(g_staged) X(g_staged_reply) X(trace) X(trace_reply) X(g_trace) X(peer_status) X(g_wave) X(g_pace) X(g_pace_reply) X(g_copy_reply) \
	X(forgo) X(g_forgo)
#define ELEM_LIST(X)                                                                                                     \
	X(item) X(attribute) X(grant) X(filled) X(stat) X(item_info) X(want) X(block) X(token) X(bundle) X(label) X(version) \
	X(node) X(save_status) X(damage) X(rank_offer) X(g_block) X(g_receive) X(g_filled) X(g_copy) X(name) X(g_put) X(g_source) X(u32) X(step)       \
	X(place) X(report) X(g_recovered) X(g_ended) X(station) X(hop) X(trace)

/* clang-format on */

#define MSG_FIELD(type, name) field_##type name;
#define MSG_DECLARE(name)                                                     \
	struct msg_##name {                                                   \
		MSG_##name(MSG_FIELD)                                         \
	};                                                                    \
	int msg_##name##_encode(const struct msg_##name *m, struct buf *out); \
	int msg_##name##_decode(struct view body, struct msg_##name *ret);
#define ELEM_DECLARE(name)                                                            \
	struct elem_##name {                                                          \
		ELEM_##name(MSG_FIELD)                                                \
	};                                                                            \
	int elem_##name##_append(struct list_buf *list, const struct elem_##name *e); \
	/* The next element of the list: 0, 1 at the end, -EPROTO. */                 \
	int elem_##name##_next(struct list_view *list, struct elem_##name *ret);
MSG_LIST(MSG_DECLARE)
ELEM_LIST(ELEM_DECLARE)
