#include "sim/models.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/map.h"
#include "sim/inside.h"

#define DELAY_MAX_NS (2 * NS_PER_MS)
#define LATE_MAX_NS  (5 * NS_PER_S)

struct record {
	struct buf key, value;
};

struct model_records {
	struct world *world;
	struct record **records; /* sorted by key */
	size_t n, room;
};

struct model_records *model_records_new(struct world *world)
{
	struct model_records *records = must_alloc(sizeof(*records));

	records->world = world;
	return records;
}

static void record_free(struct record *record)
{
	buf_fini(&record->key);
	buf_fini(&record->value);
	free(record);
}

void model_records_free(struct model_records *records)
{
	for (size_t i = 0; records && i < records->n; i++)
		record_free(records->records[i]);
	if (records)
		free(records->records);
	free(records);
}

/* The place of the first record with a key not below @key; after it, if @past. */
static size_t place(const struct model_records *records, struct view key, bool past)
{
	size_t low = 0, high = records->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (view_compare(view_buf(&records->records[middle]->key), key) < past)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct record *find(const struct model_records *records, struct view key)
{
	size_t at = place(records, key, false);

	return at < records->n && view_equal(view_buf(&records->records[at]->key), key) ? records->records[at] : NULL;
}

/* The first of those with @prefix that come after @after; its successors are the others. NULL: there is none. */
static struct record **find_range(struct model_records *records, struct view prefix, struct view after)
{
	bool from_after = after.len && view_compare(prefix, after) <= 0;
	size_t at = from_after ? place(records, after, true) : place(records, prefix, false);

	return records->records + at;
}

static bool has_prefix(const struct model_records *records, struct record **at, struct view prefix)
{
	return at < records->records + records->n && (*at)->key.len >= prefix.len &&
	       (!prefix.len || memcmp((*at)->key.ptr, prefix.ptr, prefix.len) == 0);
}

static int put(struct model_records *records, struct view key, struct view value)
{
	SPARED;
	struct record *record = find(records, key);
	size_t at = place(records, key, false);

	if (!record) {
		if (records->n == records->room) {
			records->room = records->room ? 2 * records->room : 64;
			records->records = reallocarray(records->records, records->room, sizeof(record));
			CHECK(records->records);
		}
		record = must_alloc(sizeof(*record));
		memmove(&records->records[at + 1], &records->records[at], (records->n++ - at) * sizeof(record));
		records->records[at] = record;
		CHECK(!buf_append(&record->key, key.ptr, key.len));
	}
	record->value.len = 0;
	return buf_append(&record->value, value.ptr, value.len);
}

static void drop(struct model_records *records, struct view key)
{
	size_t at = place(records, key, false);

	if (!find(records, key))
		return;
	record_free(records->records[at]);
	memmove(&records->records[at], &records->records[at + 1], (--records->n - at) * sizeof(struct record *));
}

struct model_records *model_records_copy(const struct model_records *records)
{
	struct model_records *copy = model_records_new(records->world);

	for (size_t i = 0; i < records->n; i++)
		CHECK(!put(copy, view_buf(&records->records[i]->key), view_buf(&records->records[i]->value)));
	return copy;
}

/* An answer's way: a process that dies before the effect has none, one that dies after it never hears of it. */
static int pass(struct env *env, uint64_t most_ns)
{
	(void)fiber_sleep_until(env_now(env) + 1 + world_random(sim_env(env)->world, most_ns));
	if (!sim_env(env)->dead && sim_env(env)->stopped_until_ns > env_now(env))
		(void)fiber_sleep_until(sim_env(env)->stopped_until_ns);
	return sim_env(env)->dead ? -ESHUTDOWN : 0;
}

static int act(struct env *env, const char *what, const char *where, int (*effect)(void *arg), void *arg)
{
	struct sim_env *sim = sim_env(env);
	int r = pass(env, DELAY_MAX_NS);

	if (!r && (strike_here(STRIKE_FILE) || fault_here(sim, FAULT_WRITE_EIO, what, where)))
		r = -EIO;
	if (!r)
		r = effect(arg);
	int passed = pass(env, fault_here(sim, FAULT_SLOW, what, where) ? LATE_MAX_NS : DELAY_MAX_NS);
	return passed ? passed : r;
}

/* ---- the store ---- */

struct model_backend {
	struct backend backend;
	struct model_records *records;
};

struct backend_upload {
	char key[BACKEND_KEY_MAX + 1];
	struct buf bytes, covered; /* covered: a byte of 1 per byte written */
};

static void upload_drop(struct backend_req *req)
{
	struct backend_upload *upload = TAKE(req->upload);

	if (upload) {
		buf_fini(&upload->bytes);
		buf_fini(&upload->covered);
	}
	free(upload);
}

/* Private copies of the request's bytes, summed: as every driver must. */
static int gather(const struct backend_req *req, struct buf *out)
{
	for (size_t i = 0; i < req->n_vec; i++) {
		size_t at = out->len;

		CHECK(!buf_append(out, req->vec[i].ptr, req->vec[i].len));
		if (crc32c(0, out->ptr + at, out->len - at) != req->vec[i].crc)
			return -ERR_ECHANGED;
	}
	return 0;
}

static int store(struct model_records *records, const struct backend_req *req, const char *name, struct view bytes)
{
	if (req->if_absent && find(records, view_str(name)))
		return BACKEND_EXISTS;
	return put(records, view_str(name), bytes);
}

static int do_get(struct backend_req *req, const struct record *record)
{
	struct sim_env *env = sim_env(req->backend->env);
	size_t left = record && req->offset < record->value.len ? record->value.len - req->offset : 0;

	if (!record)
		return -ENOENT;
	req->size = record->value.len;
	req->got = req->op == BACKEND_HEAD ? 0 : left < req->len ? left : req->len;
	if (req->got)
		memcpy(req->dst, record->value.ptr + req->offset, req->got);
	if (req->got && fault_here(env, FAULT_READ_FLIP, "get", req->key))
		((uint8_t *)req->dst)[world_random(env->world, req->got)] ^= 16;
	if (req->hasher)
		hasher_update(req->hasher, req->dst, req->got);
	return 0;
}

static int do_part(struct backend_req *req, const struct buf *bytes)
{
	struct backend_upload *upload = req->upload;
	size_t end = req->offset + bytes->len;

	if (end > upload->bytes.len) {
		size_t more = end - upload->bytes.len;

		CHECK(!buf_append_zero(&upload->bytes, more) && !buf_append_zero(&upload->covered, more));
	}
	if (bytes->len) {
		memcpy(upload->bytes.ptr + req->offset, bytes->ptr, bytes->len);
		memset(upload->covered.ptr + req->offset, 1, bytes->len);
	}
	return 0;
}

static int do_list(struct backend_req *req, struct model_records *records)
{
	struct view prefix = view_str(req->key);
	struct record **at = find_range(records, prefix, view_str(req->after));

	for (; req->got < req->len && has_prefix(records, at, prefix); at++, req->got++)
		CHECK(!buf_append(&req->out, (*at)->key.ptr, (*at)->key.len) && !buf_append_zero(&req->out, 1));
	return 0;
}

static int store_effect(void *arg)
{
	struct backend_req *req = arg;
	struct model_records *records = container_of(req->backend, struct model_backend, backend)->records;
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct buf *uploaded = req->upload ? &req->upload->bytes : NULL;
	int r = req->op == BACKEND_PUT || req->op == BACKEND_PART ? gather(req, &bytes) : 0;

	switch (req->op) {
	case BACKEND_GET:
	case BACKEND_HEAD:
		return do_get(req, find(records, view_str(req->key)));
	case BACKEND_PUT:
		return r ? r : store(records, req, req->key, view_buf(&bytes));
	case BACKEND_BEGIN:
		req->upload = must_alloc(sizeof(*req->upload));
		memcpy(req->upload->key, req->key, sizeof(req->key));
		return 0;
	case BACKEND_PART:
		return r ? r : do_part(req, &bytes);
	case BACKEND_COMMIT:
		if (uploaded->len != req->len || (req->len && memchr(req->upload->covered.ptr, 0, req->len)))
			return -EINVAL;
		return store(records, req, req->upload->key, view_buf(uploaded));
	case BACKEND_LIST:
		return do_list(req, records);
	case BACKEND_DELETE:
		drop(records, view_str(req->key));
		return 0;
	case BACKEND_ABORT:
	case BACKEND_PROBE:
		return 0;
	}
	return -ENOSYS;
}

/* What ends an upload, as its commit does, whatever the result, leaves none behind. */
static bool ends_upload(const struct backend_req *req)
{
	return req->op == BACKEND_COMMIT || req->op == BACKEND_ABORT || (req->op == BACKEND_BEGIN && req->result);
}

static void store_run(struct job *job)
{
	struct backend_req *req = container_of(job, struct backend_req, job);

	req->result = act(req->backend->env, "store", req->key, store_effect, req);
	if (req->result < 0)
		(void)error_set(&req->error, req->result, "%s: %s", req->key, error_meaning(req->result));
	if (ends_upload(req))
		upload_drop(req);
}

static void store_finish(struct job *job)
{
	struct backend_req *req = container_of(job, struct backend_req, job);

	req->finish(req);
}

static void store_submit(struct backend *backend, struct backend_req *req)
{
	req->job = (struct job){ .lane = LANE_STORE, .run = store_run, .finish = store_finish };
	int r = backend->env->ops->offload(backend->env, &req->job);

	if (!r)
		return;
	req->result = r;
	if (ends_upload(req))
		upload_drop(req);
	backend_finish_later(req, r);
}

static void store_free_driver(struct backend *backend)
{
	free(container_of(backend, struct model_backend, backend));
}

static const struct backend_driver backend_model = { "model", store_submit, store_free_driver };

int model_backend_open(struct env *env, struct model_records *records, struct backend **ret)
{
	struct model_backend *model = must_alloc(sizeof(*model));

	model->backend = (struct backend){ .magic = BACKEND_MAGIC, .driver = &backend_model, .env = env };
	model->records = records;
	*ret = &model->backend;
	return 0;
}

/* ---- the engine ---- */

struct model_meta {
	struct meta meta;
	struct model_records *records;
	struct map ends; /* of leases: uint64_t * by key; not in it: held since before the engine was opened */
	uint64_t opened_ns;
};

static int meta_range(struct model_records *records, struct meta_req *req)
{
	struct view prefix, after;
	uint32_t limit;
	int r = meta_in_range(view_buf(&req->in), &prefix, &after, &limit);

	if (r)
		return r;
	for (struct record **at = find_range(records, prefix, after); !r && limit && has_prefix(records, at, prefix);
	     at++, limit--)
		r = meta_out_put_entry(&req->out, view_buf(&(*at)->key), view_buf(&(*at)->value));
	return r;
}

static int meta_txn(struct model_records *records, struct meta_req *req)
{
	struct view rest = view_buf(&req->in);
	struct meta_step step;
	int r;

	for (uint32_t index = 0; (r = meta_in_step(&rest, &step)) == 0; index++) {
		const struct record *record = find(records, step.key);
		bool holds = step.kind == META_EXPECT_ABSENT ?
				     !record :
				     step.kind != META_EXPECT_VALUE ||
					     (record && view_equal(view_buf(&record->value), step.value));

		if (!holds) {
			r = meta_out_put_conflict(&req->out, index);
			return r ? r : META_CONFLICT;
		}
	}
	rest = view_buf(&req->in);
	while (r == 1 && meta_in_step(&rest, &step) == 0) {
		if (step.kind == META_PUT)
			CHECK(!put(records, step.key, step.value));
		if (step.kind == META_DELETE)
			drop(records, step.key);
	}
	return r == 1 ? 0 : r;
}

static uint64_t *lease_end(struct model_meta *model, struct view key)
{
	SPARED;
	uint64_t *end = map_get(&model->ends, key);

	if (!end) {
		end = must_alloc(sizeof(*end));
		*end = model->opened_ns + META_LEASE_MAX_MS * NS_PER_MS;
		CHECK(!map_put(&model->ends, key, end));
	}
	return end;
}

static int meta_lease(struct model_meta *model, struct meta_req *req)
{
	struct meta_lease_record record = { 0 };
	struct meta_lease want;
	uint64_t holder = 0, epoch = 0, now_ns = env_now(model->meta.env);
	bool wants = req->op != META_RELEASE;
	int r = meta_in_lease(view_buf(&req->in), &want);
	const struct record *known = r ? NULL : find(model->records, want.key);

	if (!r && ((known && meta_out_lease(view_buf(&known->value), &holder, &epoch)) || (wants && !want.ttl_ms)))
		r = -EINVAL;
	bool has = holder == want.holder && (req->op == META_LEASE ? epoch > want.epoch : epoch == want.epoch);
	if (r || (!wants && !has))
		return r;
	uint64_t *end = lease_end(model, want.key);
	if (!has && (req->op == META_RENEW || (holder && holder != want.holder && now_ns < *end))) {
		r = meta_out_put_lease(&req->out, holder, epoch);
		return r ? r : META_HELD;
	}
	if (!has)
		epoch = (epoch > want.epoch ? epoch : want.epoch) + 1;
	store_le64(record.holder_le, wants ? want.holder : 0);
	store_le64(record.epoch_le, epoch);
	*end = wants ? now_ns + want.ttl_ms * NS_PER_MS / 10 * 11 : 0;
	r = put(model->records, want.key, view_of(&record, sizeof(record)));
	return r || !wants ? r : meta_out_put_lease(&req->out, want.holder, epoch);
}

static int meta_effect(void *arg)
{
	struct meta_req *req = arg;
	struct model_meta *model = container_of(req->meta, struct model_meta, meta);
	struct view key;
	int r;

	if (req->op == META_RANGE)
		return meta_range(model->records, req);
	if (req->op == META_TXN)
		return meta_txn(model->records, req);
	if (req->op != META_GET)
		return meta_lease(model, req);
	r = meta_in_key(view_buf(&req->in), &key);
	const struct record *record = r ? NULL : find(model->records, key);
	if (!record)
		return r ? r : -ENOENT;
	return buf_append(&req->out, record->value.ptr, record->value.len);
}

static void meta_run(struct job *job)
{
	struct meta_req *req = container_of(job, struct meta_req, job);

	req->result = act(req->meta->env, "meta", "engine", meta_effect, req);
	if (req->result < 0 && !req->error.code)
		(void)error_set(&req->error, req->result, "the engine: %s", error_meaning(req->result));
}

static void meta_done(struct job *job)
{
	struct meta_req *req = container_of(job, struct meta_req, job);

	req->finish(req);
}

static void meta_submit_model(struct meta *meta, struct meta_req *req)
{
	req->job = (struct job){ .run = meta_run, .finish = meta_done };
	int r = meta->env->ops->offload(meta->env, &req->job);

	if (r)
		meta_finish_later(req, r);
}

static void meta_free_model(struct meta *meta)
{
	struct model_meta *model = container_of(meta, struct model_meta, meta);

	for (struct map_slot *slot = map_first(&model->ends); slot; slot = map_next(slot))
		free(map_value(slot));
	map_fini(&model->ends);
	free(model);
}

static const struct meta_driver meta_model = { "model", meta_submit_model, meta_free_model };

int model_meta_open(struct env *env, struct model_records *records, struct meta **ret)
{
	struct model_meta *model = must_alloc(sizeof(*model));

	model->meta = (struct meta){ .magic = META_MAGIC, .driver = &meta_model, .env = env };
	model->records = records;
	model->opened_ns = env_now(env);
	map_init(&model->ends);
	*ret = &model->meta;
	return 0;
}
