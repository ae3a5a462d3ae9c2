/*
 * base/counter.h: what a process counts and measures of itself, in one table.
 *
 * COUNTER_TABLE yields the numbers, the code, the exposition that Prometheus reads (counter_expose) and is compared with
 * docs/metrics.md by a test. A *family* is a name with its kind, the label that tells its series apart, and its help text; the
 * *series* that follow it are what is counted. One table per process, as one process is one node; in the simulator all nodes
 * count together.
 *
 * Counting costs one relaxed atomic addition, on whatever thread, and takes no lock. Gauges are set when somebody looks: by
 * their owner, on the loop, right before a snapshot is made (daemon/gauges.c).
 */
#pragma once

#include <stdint.h>

#include "base/bytes.h"

#define COUNTER_PREFIX "forebay_"

/*
 * FAMILY(name, kind, unit, label or NULL, help) and its SERIES(number, label's value or NULL), or TIMES for a histogram. Kinds:
 * COUNT only rises, GAUGE is as it is, HISTOGRAM has fixed buckets of time. What is in `ns` is shown in seconds.
 */
/* Laid out by hand, so that a long line does not move all others. */
/* clang-format off */
#define COUNTER_TABLE(FAMILY, SERIES, TIMES) \
	FAMILY(saves_begun_total, COUNT, "saves", NULL, "Saves that this node began to coordinate.") \
	SERIES(SAVES_BEGUN, NULL) \
	FAMILY(save_states_total, COUNT, "saves", "state", \
		"Saves that this node coordinates, by the states that they reached.") \
	SERIES(SAVES_PLANNED, "planned") \
	SERIES(SAVES_CAPTURING, "capturing") \
	SERIES(SAVES_CAPTURED, "captured") \
	SERIES(SAVES_STAGED, "staged") \
	FAMILY(saves_ended_total, COUNT, "saves", "outcome", "Saves that this node coordinated, by how they ended.") \
	SERIES(SAVES_DURABLE, "durable") \
	SERIES(SAVES_UNINDEXED, "unindexed") \
	SERIES(SAVES_SKIPPED, "skipped") \
	SERIES(SAVES_SUPERSEDED, "superseded") \
	SERIES(SAVES_FAILED, "failed") \
	FAMILY(save_station_seconds, HISTOGRAM, "ns", "station", \
		"How long saves that this node coordinates stayed at each station.") \
	TIMES(SAVE_GATHER, "gather") \
	TIMES(SAVE_PLAN, "plan") \
	TIMES(SAVE_RESERVE, "reserve") \
	TIMES(SAVE_CAPTURE, "capture") \
	TIMES(SAVE_STAGE, "stage") \
	TIMES(SAVE_PUBLISH, "publish") \
	FAMILY(save_bytes_total, COUNT, "bytes", "what", "Bytes of the durable saves that this node coordinated.") \
	SERIES(SAVE_OFFERED_BYTES, "offered") \
	SERIES(SAVE_UNIQUE_BYTES, "unique") \
	SERIES(SAVE_HOLE_BYTES, "holes") \
	SERIES(SAVE_STORED_BYTES, "stored") \
	FAMILY(captured_bytes_total, COUNT, "bytes", NULL, \
		"Bytes that ranks on this node have captured into its pool.") \
	SERIES(CAPTURED_BYTES, NULL) \
	FAMILY(copied_bytes_total, COUNT, "bytes", NULL, \
		"Bytes of copies that this node fetched from other nodes for saves.") \
	SERIES(COPIED_BYTES, NULL) \
	FAMILY(uploaded_bytes_total, COUNT, "bytes", NULL, "Bytes of packs that this node has written to the store.") \
	SERIES(UPLOADED_BYTES, NULL) \
	FAMILY(read_blocks_total, COUNT, "blocks", "source", \
		"Blocks that this node read for its clients and peers, by their source.") \
	SERIES(READ_POOL_BLOCKS, "pool") \
	SERIES(READ_PEER_BLOCKS, "peer") \
	SERIES(READ_STORE_BLOCKS, "store") \
	FAMILY(read_bytes_total, COUNT, "bytes", "source", "Bytes of these blocks.") \
	SERIES(READ_POOL_BYTES, "pool") \
	SERIES(READ_PEER_BYTES, "peer") \
	SERIES(READ_STORE_BYTES, "store") \
	FAMILY(blocks_verified_total, COUNT, "blocks", NULL, \
		"Blocks whose bytes were compared with their digest and were right.") \
	SERIES(BLOCKS_VERIFIED, NULL) \
	FAMILY(blocks_refused_total, COUNT, "blocks", NULL, \
		"Blocks that did not match their digest or checksum. None was handed on.") \
	SERIES(BLOCKS_REFUSED, NULL) \
	FAMILY(pool_bytes, GAUGE, "bytes", "arena", "Size of the pool's arenas.") \
	SERIES(POOL_CAPTURE_BYTES, "capture") \
	SERIES(POOL_READ_BYTES, "read") \
	FAMILY(pool_used_bytes, GAUGE, "bytes", "arena", "Bytes of the pool that are pinned or not yet durable.") \
	SERIES(POOL_CAPTURE_USED, "capture") \
	SERIES(POOL_READ_USED, "read") \
	FAMILY(pool_clean_bytes, GAUGE, "bytes", "arena", \
		"Bytes of the pool that are cache and leave when room is needed.") \
	SERIES(POOL_CAPTURE_CLEAN, "capture") \
	SERIES(POOL_READ_CLEAN, "read") \
	FAMILY(pool_free_bytes, GAUGE, "bytes", "arena", "Bytes of the pool that hold nothing.") \
	SERIES(POOL_CAPTURE_FREE, "capture") \
	SERIES(POOL_READ_FREE, "read") \
	FAMILY(pool_blocks, GAUGE, "blocks", NULL, "Blocks in the pool.") \
	SERIES(POOL_BLOCKS, NULL) \
	FAMILY(pool_evictions_total, COUNT, "blocks", NULL, \
		"Blocks of cache that left the pool because room was needed.") \
	SERIES(POOL_EVICTIONS, NULL) \
	FAMILY(clients, GAUGE, "sessions", NULL, "Sessions of clients on this node.") \
	SERIES(CLIENTS, NULL) \
	FAMILY(clients_stopped, GAUGE, "sessions", NULL, \
		"Sessions whose process is stopped; it keeps what it holds of the pool.") \
	SERIES(CLIENTS_STOPPED, NULL) \
	FAMILY(peers, GAUGE, "nodes", "state", "Other nodes that this one has called, by whether they answer.") \
	SERIES(PEERS_UP, "up") \
	SERIES(PEERS_DOWN, "down") \
	FAMILY(peers_lost_total, COUNT, "nodes", NULL, "How often a node that had answered was noticed to be down.") \
	SERIES(PEERS_LOST, NULL) \
	FAMILY(heartbeats_missed_total, COUNT, "heartbeats", NULL, \
		"Heartbeats that a peer had not answered when the next was due.") \
	SERIES(HEARTBEATS_MISSED, NULL) \
	FAMILY(calls_total, COUNT, "calls", NULL, "Calls that this node made to nodes, itself included.") \
	SERIES(CALLS, NULL) \
	FAMILY(calls_failed_total, COUNT, "calls", "reason", \
		"Calls that failed, by why; other: the called node said so.") \
	SERIES(CALLS_TIMED_OUT, "timed_out") \
	SERIES(CALLS_HOST_DOWN, "host_down") \
	SERIES(CALLS_CANCELLED, "cancelled") \
	SERIES(CALLS_STALE, "stale_epoch") \
	SERIES(CALLS_OTHER, "other") \
	FAMILY(leases, GAUGE, "leases", NULL, "Groups that this node coordinates: each is a lease that it holds.") \
	SERIES(LEASES, NULL) \
	FAMILY(leases_total, COUNT, "leases", "event", "What became of this node's leases of groups.") \
	SERIES(LEASES_WON, "won") \
	SERIES(LEASES_LOST, "lost") \
	SERIES(LEASES_GIVEN_BACK, "given_back") \
	FAMILY(meta_requests_total, COUNT, "requests", "operation", "Requests of this node to the meta engine.") \
	SERIES(META_GETS, "get") \
	SERIES(META_RANGES, "range") \
	SERIES(META_TXNS, "transaction") \
	SERIES(META_LEASES, "lease") \
	SERIES(META_RELEASES, "release") \
	FAMILY(meta_conflicts_total, COUNT, "requests", NULL, \
		"Transactions that found another value than expected, and changed nothing.") \
	SERIES(META_CONFLICTS, NULL) \
	FAMILY(meta_errors_total, COUNT, "requests", NULL, \
		"Requests to the meta engine that failed or came too late.") \
	SERIES(META_ERRORS, NULL) \
	FAMILY(store_request_seconds, HISTOGRAM, "ns", "operation", \
		"Requests of this node to the store, and how long they took.") \
	TIMES(STORE_GET, "get") \
	TIMES(STORE_HEAD, "head") \
	TIMES(STORE_PUT, "put") \
	TIMES(STORE_BEGIN, "begin") \
	TIMES(STORE_PART, "part") \
	TIMES(STORE_COMMIT, "commit") \
	TIMES(STORE_ABORT, "abort") \
	TIMES(STORE_LIST, "list") \
	TIMES(STORE_DELETE, "delete") \
	TIMES(STORE_PROBE, "probe") \
	FAMILY(store_errors_total, COUNT, "requests", NULL, \
		"Requests to the store that failed or came too late; an absent key is none.") \
	SERIES(STORE_ERRORS, NULL) \
	FAMILY(store_retries_total, COUNT, "requests", NULL, "Requests to the store that were made again.") \
	SERIES(STORE_RETRIES, NULL) \
	FAMILY(frames_refused_total, COUNT, "frames", "reason", \
		"Frames that ended their connection, by what was wrong with them.") \
	SERIES(FRAMES_MALFORMED, "malformed") \
	SERIES(FRAMES_DAMAGED, "damaged") \
	SERIES(FRAMES_VERSION, "version") \
	FAMILY(http_requests_total, COUNT, "requests", "code", "Requests to the HTTP door, by its answer.") \
	SERIES(HTTP_200, "200") \
	SERIES(HTTP_404, "404") \
	SERIES(HTTP_405, "405") \
	SERIES(HTTP_503, "503") \
	FAMILY(log_lines_total, COUNT, "lines", "level", \
		"Lines of the log, by level; suppressed: repeats that were left out, and what standard error had no room for.") \
	SERIES(LOG_ERRORS, "error") \
	SERIES(LOG_WARNINGS, "warn") \
	SERIES(LOG_INFOS, "info") \
	SERIES(LOG_DEBUGS, "debug") \
	SERIES(LOG_SUPPRESSED, "suppressed") \
	FAMILY(loop_turn_seconds, HISTOGRAM, "ns", NULL, "How long turns of the loop took, its sleep left out.") \
	TIMES(LOOP_TURN, NULL) \
	FAMILY(open_descriptors, GAUGE, "descriptors", NULL, "Open file descriptors of the daemon.") \
	SERIES(OPEN_DESCRIPTORS, NULL) \
	FAMILY(resident_bytes, GAUGE, "bytes", NULL, "Resident memory of the daemon, the pool included.") \
	SERIES(RESIDENT_BYTES, NULL) \
	FAMILY(heap_bytes, GAUGE, "bytes", NULL, \
		"Bytes of the daemon's heap that are in use, with freed ones that its threads keep at hand.") \
	SERIES(HEAP_BYTES, NULL) \
	FAMILY(up_seconds, GAUGE, "ns", NULL, "How long the daemon has been running.") \
	SERIES(UP_TIME, NULL) \
	FAMILY(generation, GAUGE, "number", NULL, \
		"The cluster's generation as this node knows it; 0 before it has joined.") \
	SERIES(GENERATION, NULL) \
	FAMILY(store_stalls_total, COUNT, "reads", "event", \
		"Blocks read from the store for much longer than others of late, and what became of them.") \
	SERIES(STALLS, "stalled") \
	SERIES(STALLS_ASKED_AGAIN, "asked_again") \
	SERIES(STALLS_SECOND_WON, "second_won") \
	FAMILY(peer_refusals_total, COUNT, "refusals", "reason", \
		"Connections and calls of peers that were turned away, by what was wrong with them.") \
	SERIES(PEER_GARBAGE, "garbage") \
	SERIES(PEER_VERSION, "version") \
	SERIES(PEER_HELLO, "hello") \
	SERIES(PEER_CLUSTER, "cluster") \
	SERIES(PEER_NAME, "name") \
	SERIES(PEER_UNPROVEN, "unproven") \
	SERIES(PEER_PROOF, "proof") \
	SERIES(PEER_STALE, "stale") \
	SERIES(PEER_SILENT, "silent") \
	SERIES(PEER_ORDER, "order") \
	SERIES(PEER_LIMIT, "limit") \
	SERIES(PEER_BODY, "body") \
	SERIES(PEER_TYPE, "type") \
	FAMILY(client_refusals_total, COUNT, "refusals", "reason", \
		"Connections and requests of clients that were turned away, by what was wrong with them.") \
	SERIES(CLIENT_GARBAGE, "garbage") \
	SERIES(CLIENT_VERSION, "version") \
	SERIES(CLIENT_HELLO, "hello") \
	SERIES(CLIENT_USER, "user") \
	SERIES(CLIENT_SILENT, "silent") \
	SERIES(CLIENT_ORDER, "order") \
	SERIES(CLIENT_LIMIT, "limit") \
	SERIES(CLIENT_DEAF, "deaf") \
	SERIES(CLIENT_BODY, "body") \
	SERIES(CLIENT_TYPE, "type") \
	SERIES(CLIENT_STRANGE, "strange")
/* clang-format on */

#define COUNTER_NOTHING(...)
enum counter {
#define SERIES(number, value) COUNT_##number,
	COUNTER_TABLE(COUNTER_NOTHING, SERIES, COUNTER_NOTHING)
#undef SERIES
		COUNTERS
};

enum timing {
#define TIMES(number, value) TIME_##number,
	COUNTER_TABLE(COUNTER_NOTHING, COUNTER_NOTHING, TIMES)
#undef TIMES
		TIMINGS
};

void count(enum counter counter, uint64_t more); /* any thread */
void count_set(enum counter gauge, uint64_t value);
uint64_t count_value(enum counter counter);
const char *counter_label(enum counter counter);  /* its label's value; NULL: it has none */
void count_time(enum timing timing, uint64_t ns); /* one more thing that took so long; any thread */
uint64_t count_times(enum timing timing);	  /* how many there were */

/* All of it, as text in Prometheus' format 0.0.4. Any thread. 0 or -ENOMEM. */
int counter_expose(struct buf *out);
