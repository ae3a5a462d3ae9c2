/*
 * _forebay.c: forebay.h for Python, one function for each call. Module forebay._forebay; the package's __init__.py makes the
 * classes of it. Limited API: one binary serves every Python from 3.9.
 *
 * Every function takes its arguments by position, enters its handle (_handle.h), calls the library without the GIL and raises
 * forebay.Error, or ValueError and TypeError for what is wrong before the library sees it.
 */
#include "_handle.h"

#define PAGE_ITEMS 256 /* of a version, fetched at once */

/* ---- what calls back --------------------------------------------------------------------------------------------------- */

/* Where a call-back puts what it is told. It runs in the thread that called the library, which left the GIL. */
struct collector {
	PyObject *into; /* list or dict */
	bool failed;	/* the exception is set */
};

/* Builds a value and adds it to the list, or under @key to the dict. Non-zero once anything failed. */
static int collect(struct collector *collector, const char *key, PyObject *value)
{
	_cleanup_(cleanup_object) PyObject *owned = value;

	if (!owned || (key ? PyDict_SetItemString(collector->into, key, owned) : PyList_Append(collector->into, owned)))
		collector->failed = true;
	return collector->failed;
}

static void each_figure(void *arg, const char *name, uint64_t value)
{
	struct collector *collector = arg;
	PyGILState_STATE state = PyGILState_Ensure();

	if (!collector->failed)
		collect(collector, name, PyLong_FromUnsignedLongLong(value));
	PyGILState_Release(state);
}

static int each_label(void *arg, const char *label, uint64_t number)
{
	each_figure(arg, label, number);
	return ((struct collector *)arg)->failed;
}

/* {key: value}, or NULL with an exception. */
static PyObject *attributes_dict(const struct forebay_attribute *attributes, size_t n)
{
	struct collector collector = { .into = PyDict_New() };

	for (size_t i = 0; collector.into && i < n && !collector.failed; i++)
		collect(&collector, attributes[i].key, PyUnicode_FromString(attributes[i].value));
	if (collector.failed)
		Py_CLEAR(collector.into);
	return collector.into;
}

static int each_bundle(void *arg, const struct forebay_bundle_info *info)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *record = Py_BuildValue("(sKKKK)", info->name, (unsigned long long)info->versions,
					 (unsigned long long)info->latest, (unsigned long long)info->keep_last,
					 (unsigned long long)info->keep_every);
	int r = collect(arg, NULL, record);

	PyGILState_Release(state);
	return r;
}

static int each_version(void *arg, const struct forebay_version_entry *entry)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *attributes = attributes_dict(entry->attributes, entry->n_attributes);
	PyObject *record = attributes ? Py_BuildValue("(KKKKKN)", (unsigned long long)entry->number,
						      (unsigned long long)entry->step, (unsigned long long)entry->items,
						      (unsigned long long)entry->bytes,
						      (unsigned long long)entry->stored_bytes, attributes) :
					NULL;
	int r = collect(arg, NULL, record);

	PyGILState_Release(state);
	return r;
}

/* What was collected, or NULL with the exception of the call-back or of the call. Consumes it. */
static PyObject *collected(struct collector *collector, int r)
{
	if (!collector->failed && r >= 0)
		return collector->into;
	if (!collector->failed)
		fail(r);
	Py_DECREF(collector->into);
	return NULL;
}

/* ---- session and names ------------------------------------------------------------------------------------------------- */

static PyObject *connect_(PyObject *module, PyObject *args)
{
	struct forebay_connect_options options = { .size = sizeof(options) };
	struct forebay_session *session = NULL;

	if (!PyArg_ParseTuple(args, "zO&", &options.socket, to_ms, &options.timeout_ms))
		return NULL;
	sweep();
	struct handle *handle = handle_new(SESSION, NULL, NULL);
	if (!handle)
		return NULL;
	int r = UNLOCKED(forebay_connect(&options, &session));
	return handle_or_fail(handle, session, r);
}

static PyObject *list_bundles(PyObject *module, PyObject *args)
{
	struct collector collector = { 0 };
	const char *prefix;
	PyObject *object;

	if (!PyArg_ParseTuple(args, "Os", &object, &prefix))
		return NULL;
	_cleanup_(leave) struct handle *session = enter(object, SESSION);
	if (!session || !(collector.into = PyList_New(0)))
		return NULL;
	int r = UNLOCKED(forebay_list_bundles(session->it, prefix, each_bundle, &collector));
	return collected(&collector, r);
}

static PyObject *list_versions(PyObject *module, PyObject *args)
{
	struct collector collector = { 0 };
	const char *bundle;
	PyObject *object;

	if (!PyArg_ParseTuple(args, "Os", &object, &bundle))
		return NULL;
	_cleanup_(leave) struct handle *session = enter(object, SESSION);
	if (!session || !(collector.into = PyList_New(0)))
		return NULL;
	int r = UNLOCKED(forebay_list_versions(session->it, bundle, each_version, &collector));
	return collected(&collector, r);
}

static PyObject *list_labels(PyObject *module, PyObject *args)
{
	struct collector collector = { 0 };
	const char *bundle;
	PyObject *object;

	if (!PyArg_ParseTuple(args, "Os", &object, &bundle))
		return NULL;
	_cleanup_(leave) struct handle *session = enter(object, SESSION);
	if (!session || !(collector.into = PyDict_New()))
		return NULL;
	int r = UNLOCKED(forebay_list_labels(session->it, bundle, each_label, &collector));
	return collected(&collector, r);
}

static PyObject *label(PyObject *module, PyObject *args)
{
	uint64_t number, expect = FOREBAY_LABEL_ANY;
	const char *bundle, *name;
	PyObject *object, *expected;

	if (!PyArg_ParseTuple(args, "OssO&O", &object, &bundle, &name, to_u64, &number, &expected))
		return NULL;
	if (expected != Py_None && !to_u64(expected, &expect))
		return NULL;
	_cleanup_(leave) struct handle *session = enter(object, SESSION);
	if (!session)
		return NULL;
	return none_or_fail(UNLOCKED(forebay_label(session->it, bundle, name, expect, number)));
}

static PyObject *delete (PyObject *module, PyObject *args)
{
	const char *bundle;
	uint64_t number;
	PyObject *object;

	if (!PyArg_ParseTuple(args, "OsO&", &object, &bundle, to_u64, &number))
		return NULL;
	_cleanup_(leave) struct handle *session = enter(object, SESSION);
	if (!session)
		return NULL;
	return none_or_fail(UNLOCKED(forebay_delete(session->it, bundle, number)));
}

static PyObject *retain(PyObject *module, PyObject *args)
{
	uint64_t last, every;
	const char *bundle;
	PyObject *object;

	if (!PyArg_ParseTuple(args, "OsO&O&", &object, &bundle, to_u64, &last, to_u64, &every))
		return NULL;
	_cleanup_(leave) struct handle *session = enter(object, SESSION);
	if (!session)
		return NULL;
	return none_or_fail(UNLOCKED(forebay_retain(session->it, bundle, last, every)));
}

/* Parts of status(): one dict for the cluster, a list for nodes and saves each, a dict of counters. */
struct status {
	struct collector cluster, nodes, saves, counters;
};

static void status_cluster(void *arg, const char *cluster, const char *node, uint32_t generation)
{
	struct collector *collector = &((struct status *)arg)->cluster;
	PyGILState_STATE state = PyGILState_Ensure();

	if (!collector->failed && !collect(collector, "cluster", PyUnicode_FromString(cluster)) &&
	    !collect(collector, "node", PyUnicode_FromString(node)))
		collect(collector, "generation", PyLong_FromUnsignedLong(generation));
	PyGILState_Release(state);
}

static void status_node(void *arg, const struct forebay_node_info *node)
{
	struct collector *collector = &((struct status *)arg)->nodes;
	PyGILState_STATE state = PyGILState_Ensure();

	if (!collector->failed)
		collect(collector, NULL,
			Py_BuildValue("{ss,ss,ss,sK,sK,sK,sN}", "name", node->name, "address", node->address, "domain",
				      node->domain, "incarnation", (unsigned long long)node->incarnation, "pool_bytes",
				      (unsigned long long)node->pool_bytes, "pool_used_bytes",
				      (unsigned long long)node->pool_used_bytes, "up", PyBool_FromLong(node->up)));
	PyGILState_Release(state);
}

static void status_save(void *arg, const struct forebay_save_info *save)
{
	struct collector *collector = &((struct status *)arg)->saves;
	PyGILState_STATE state = PyGILState_Ensure();

	if (!collector->failed)
		collect(collector, NULL,
			Py_BuildValue("{sK,ss,ss,ss,sK,sK}", "save", (unsigned long long)save->save, "group",
				      save->group, "bundle", save->bundle, "state", save->state, "step",
				      (unsigned long long)save->step, "bytes", (unsigned long long)save->bytes));
	PyGILState_Release(state);
}

static void status_index_lost(void *arg, const char *node, const char *address, uint64_t unheard_ms, const char *words)
{
	struct collector *collector = &((struct status *)arg)->cluster;
	PyGILState_STATE state = PyGILState_Ensure();

	if (!collector->failed)
		collect(collector, "index_lost",
			unheard_ms == UINT64_MAX ?
				Py_BuildValue("{ss,ss,sO,ss}", "node", node, "address", address, "unheard_ms", Py_None,
					      "words", words) :
				Py_BuildValue("{ss,ss,sK,ss}", "node", node, "address", address, "unheard_ms",
					      (unsigned long long)unheard_ms, "words", words));
	PyGILState_Release(state);
}

static void status_not_joined(void *arg, const char *words)
{
	struct collector *collector = &((struct status *)arg)->cluster;
	PyGILState_STATE state = PyGILState_Ensure();

	if (!collector->failed)
		collect(collector, "not_joined", PyUnicode_FromString(words));
	PyGILState_Release(state);
}

static void status_counter(void *arg, const char *name, uint64_t value)
{
	each_figure(&((struct status *)arg)->counters, name, value);
}

static PyObject *status(PyObject *module, PyObject *object)
{
	static const struct forebay_status_events events = {
		.size = sizeof(events),
		.cluster = status_cluster,
		.node = status_node,
		.save = status_save,
		.counter = status_counter,
		.index_lost = status_index_lost,
		.not_joined = status_not_joined,
	};
	_cleanup_(leave) struct handle *session = enter(object, SESSION);
	if (!session)
		return NULL;

	_cleanup_(cleanup_object) PyObject *all = PyDict_New(), *nodes = PyList_New(0), *saves = PyList_New(0),
					   *counters = PyDict_New();
	if (!all || !nodes || !saves || !counters || PyDict_SetItemString(all, "nodes", nodes) ||
	    PyDict_SetItemString(all, "saves", saves) || PyDict_SetItemString(all, "counters", counters))
		return NULL;

	struct status parts = {
		.cluster.into = all,
		.nodes.into = nodes,
		.saves.into = saves,
		.counters.into = counters,
	};
	int r = UNLOCKED(forebay_status(session->it, &events, &parts));
	if (parts.cluster.failed || parts.nodes.failed || parts.saves.failed || parts.counters.failed)
		return NULL;
	if (r < 0)
		return fail(r);
	Py_INCREF(all);
	return all;
}

/* ---- group ------------------------------------------------------------------------------------------------------------- */

static PyObject *group_join(PyObject *module, PyObject *args)
{
	struct forebay_group_options options = { .size = sizeof(options) };
	struct forebay_group *group = NULL;
	PyObject *object;
	int timeout_ms;

	if (!PyArg_ParseTuple(args, "OssO&O&O&", &object, &options.name, &options.run, to_u32, &options.rank, to_u32,
			      &options.ranks, to_ms, &timeout_ms))
		return NULL;
	sweep();
	_cleanup_(leave) struct handle *session = enter(object, SESSION);
	struct handle *handle = session ? handle_new(GROUP, session, NULL) : NULL;
	if (!handle)
		return NULL;
	int r = UNLOCKED(forebay_group_join(session->it, &options, timeout_ms, &group));
	return handle_or_fail(handle, group, r);
}

static PyObject *group_incarnation(PyObject *module, PyObject *object)
{
	_cleanup_(leave) struct handle *group = enter(object, GROUP);

	return group ? PyLong_FromUnsignedLongLong(UNLOCKED(forebay_group_incarnation(group->it))) : NULL;
}

/* ---- save -------------------------------------------------------------------------------------------------------------- */

/* Pairs of strings as attributes, which point into them; free() them. */
static bool to_attributes(PyObject *pairs, struct forebay_attribute **ret, size_t *ret_n)
{
	Py_ssize_t n = PyTuple_Size(pairs);
	struct forebay_attribute *attributes = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(*attributes));

	if (!attributes) {
		if (n >= 0)
			PyErr_NoMemory();
		return false;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		if (!PyArg_ParseTuple(PyTuple_GetItem(pairs, i), "ss;attributes are strings by strings",
				      &attributes[i].key, &attributes[i].value)) {
			free(attributes);
			return false;
		}
	*ret = attributes;
	*ret_n = (size_t)n;
	return true;
}

static PyObject *save_begin(PyObject *module, PyObject *args)
{
	struct forebay_save_options options = { .size = sizeof(options) };
	struct forebay_attribute *attributes;
	struct forebay_save *save = NULL;
	PyObject *object, *pairs;
	const char *bundle;
	uint64_t step;

	if (!PyArg_ParseTuple(args, "OsO&O&zpO&O!", &object, &bundle, to_u64, &step, to_u32, &options.copies,
			      &options.policy, &options.same_structure, to_u64, &options.parent, &PyTuple_Type, &pairs))
		return NULL;
	sweep();
	_cleanup_(leave) struct handle *group = enter(object, GROUP);
	if (!group || !to_attributes(pairs, &attributes, &options.n_attributes))
		return NULL;
	options.attributes = attributes;

	struct handle *handle = handle_new(SAVE, group, NULL);
	int r = handle ? UNLOCKED(forebay_save_begin(group->it, bundle, step, &options, &save)) : 0;
	free(attributes);
	return handle ? handle_or_fail(handle, save, r) : NULL;
}

/* Which part of an item a tensor is. */
struct box {
	uint64_t shape[DIMS_MAX], start[DIMS_MAX];
	bool whole;
};

/* From shape and start as Python gives them, either None. False with ValueError if they do not fit the tensor. */
static bool to_box(const struct tensor *tensor, const char *name, PyObject *shape, PyObject *start, struct box *ret)
{
	struct box box = { .whole = start == Py_None };
	char whole[256], part[256];

	memcpy(box.shape, tensor->shape, sizeof(box.shape));
	if (shape != Py_None && !to_numbers(shape, name, "shape", tensor->ndim, box.shape))
		return false;
	if (start != Py_None && !to_numbers(start, name, "start", tensor->ndim, box.start))
		return false;
	if (box.whole && memcmp(box.shape, tensor->shape, tensor->ndim * sizeof(*box.shape))) {
		PyErr_Format(PyExc_ValueError, "%s: data of shape %s is not the whole of %s: say where it starts", name,
			     shape_text(part, sizeof(part), tensor->ndim, tensor->shape),
			     shape_text(whole, sizeof(whole), tensor->ndim, box.shape));
		return false;
	}
	*ret = box;
	return true;
}

/* @dtype, or if NULL the memory's own type. NULL with an exception if there is none, or the size of elements differs. */
static const char *pick_dtype(const struct tensor *tensor, const char *name, const char *dtype)
{
	uint32_t bits = dtype_bits(dtype ? dtype : "");

	if (!dtype && !tensor->dtype[0]) {
		PyErr_Format(PyExc_TypeError, "%s: the type of its elements of %u bits has no name: give dtype=", name,
			     tensor->element_bits);
		return NULL;
	}
	if (bits && bits != tensor->element_bits) {
		PyErr_Format(PyExc_ValueError, "%s: dtype %s has elements of %u bits, the memory of %u", name, dtype,
			     bits, tensor->element_bits);
		return NULL;
	}
	return dtype ? dtype : tensor->dtype;
}

static PyObject *save_add(PyObject *module, PyObject *args)
{
	PyObject *object, *data, *shape, *start;
	const char *name, *dtype;
	struct tensor tensor;
	struct box box;
	int lowest_wins;

	if (!PyArg_ParseTuple(args, "OsOOOzp", &object, &name, &data, &shape, &start, &dtype, &lowest_wins))
		return NULL;
	_cleanup_(cleanup_lent) struct lent *lent = tensor_lend(data, name, false, &tensor);
	if (!lent || !to_box(&tensor, name, shape, start, &box) || !(dtype = pick_dtype(&tensor, name, dtype)))
		return NULL;
	_cleanup_(leave) struct handle *save = enter(object, SAVE);
	if (!save)
		return NULL;

	struct forebay_item item = {
		.size = sizeof(item),
		.name = name,
		.dtype = dtype,
		.element_bits = tensor.element_bits,
		.ndim = tensor.ndim,
		.shape = box.shape,
		.start = box.whole ? NULL : box.start,
		.count = box.whole ? NULL : tensor.shape,
		.data = tensor.data,
		.strides_bytes = tensor.contiguous ? NULL : tensor.strides_bytes,
		.flags = lowest_wins ? FOREBAY_LOWEST_RANK : 0,
	};
	int r = UNLOCKED(forebay_save_add(save->it, &item, 1));
	if (r < 0)
		return fail(r);
	lent->next = save->lent;
	save->lent = lent;
	lent = NULL;
	Py_RETURN_NONE;
}

static PyObject *save_submit(PyObject *module, PyObject *object)
{
	_cleanup_(leave) struct handle *save = enter(object, SAVE);

	if (!save)
		return NULL;
	int r = save->captured ? 0 : UNLOCKED(forebay_save_future(save->it, FOREBAY_CAPTURED, &save->captured));
	if (r >= 0)
		r = UNLOCKED(forebay_save_submit(save->it));
	if (r < 0)
		return fail(r);
	if (!save->holds_itself) {
		save->holds_itself = true;
		Py_INCREF(save);
	}
	Py_RETURN_NONE;
}

static PyObject *save_future(PyObject *module, PyObject *args)
{
	struct forebay_future *future = NULL;
	PyObject *object;
	int stage;

	if (!PyArg_ParseTuple(args, "Oi", &object, &stage))
		return NULL;
	_cleanup_(leave) struct handle *save = enter(object, SAVE);
	if (!save)
		return NULL;
	int r = UNLOCKED(forebay_save_future(save->it, (enum forebay_stage)stage, &future));
	return r < 0 ? fail(r) : future_new(save, future, stage == FOREBAY_CAPTURED);
}

static PyObject *save_version(PyObject *module, PyObject *object)
{
	_cleanup_(leave) struct handle *save = enter(object, SAVE);

	return save ? PyLong_FromUnsignedLongLong(UNLOCKED(forebay_save_version(save->it))) : NULL;
}

static PyObject *save_stats(PyObject *module, PyObject *object)
{
	_cleanup_(leave) struct handle *save = enter(object, SAVE);
	struct collector collector = { 0 };

	if (!save || !(collector.into = PyDict_New()))
		return NULL;
	int r = UNLOCKED(forebay_save_stats(save->it, each_figure, &collector));
	return collected(&collector, r);
}

static PyObject *save_cancel(PyObject *module, PyObject *object)
{
	struct handle *save = enter(object, SAVE);

	if (!save)
		return NULL;
	int r = UNLOCKED(forebay_save_cancel(save->it));
	bool is_unread = r >= 0 && !save->captured; /* never submitted */
	leave(&save);
	if (r < 0)
		return fail(r);
	if (is_unread)
		drop_lent(save);
	Py_RETURN_NONE;
}

/* ---- version ----------------------------------------------------------------------------------------------------------- */

/* The handle of the group, or NULL for None; false with an exception. Its call is not over until it leaves. */
static bool enter_group(PyObject *object, struct handle **ret)
{
	*ret = object == Py_None ? NULL : enter(object, GROUP);
	return *ret || object == Py_None;
}

static PyObject *open_(PyObject *module, PyObject *args)
{
	struct forebay_version *version = NULL;
	const char *bundle, *which;
	PyObject *object, *member;

	if (!PyArg_ParseTuple(args, "OOss", &object, &member, &bundle, &which))
		return NULL;
	sweep();
	_cleanup_(leave) struct handle *session = enter(object, SESSION);
	_cleanup_(leave) struct handle *group = NULL;
	if (!session || !enter_group(member, &group))
		return NULL;
	struct handle *handle = handle_new(VERSION, session, group);
	if (!handle)
		return NULL;
	int r = UNLOCKED(forebay_open(session->it, group ? group->it : NULL, bundle, which, &version));
	return handle_or_fail(handle, version, r);
}

/* (bundle, number, step, items, bytes, attributes) */
static PyObject *version_info(PyObject *module, PyObject *object)
{
	struct forebay_version_info info = { .size = sizeof(info) };
	_cleanup_(leave) struct handle *version = enter(object, VERSION);

	if (!version)
		return NULL;
	int r = UNLOCKED(forebay_version_info(version->it, &info));
	if (r < 0)
		return fail(r);
	PyObject *attributes = attributes_dict(info.attributes, info.n_attributes);
	if (!attributes)
		return NULL;
	return Py_BuildValue("(sKKKKN)", info.bundle, (unsigned long long)info.number, (unsigned long long)info.step,
			     (unsigned long long)info.items, (unsigned long long)info.bytes, attributes);
}

/* (name, dtype, element_bits, shape, bytes, unsaved bytes) */
static PyObject *item_tuple(const struct forebay_item_info *item)
{
	PyObject *shape = PyTuple_New(item->ndim);

	for (uint32_t i = 0; shape && i < item->ndim; i++) {
		PyObject *n = PyLong_FromUnsignedLongLong(item->shape[i]);

		if (!n || PyTuple_SetItem(shape, i, n))
			Py_CLEAR(shape);
	}
	if (!shape)
		return NULL;
	return Py_BuildValue("(ssINKK)", item->name, item->dtype, item->element_bits, shape,
			     (unsigned long long)item->bytes, (unsigned long long)item->unsaved_bytes);
}

static PyObject *version_find(PyObject *module, PyObject *args)
{
	struct forebay_item_info item = { .size = sizeof(item) };
	const char *name;
	PyObject *object;

	if (!PyArg_ParseTuple(args, "Os", &object, &name))
		return NULL;
	_cleanup_(leave) struct handle *version = enter(object, VERSION);
	if (!version)
		return NULL;
	int r = UNLOCKED(forebay_version_find(version->it, name, &item));
	return r < 0 ? fail(r) : item_tuple(&item);
}

/* A list of the next items after a name, None for the first; a short list, or an empty one, is the last. */
static PyObject *version_items(PyObject *module, PyObject *args)
{
	struct forebay_item_info items[PAGE_ITEMS];
	struct collector collector = { 0 };
	const char *after;
	PyObject *object;
	size_t n = 0;

	if (!PyArg_ParseTuple(args, "Oz", &object, &after))
		return NULL;
	for (size_t i = 0; i < PAGE_ITEMS; i++)
		items[i].size = sizeof(items[i]);
	_cleanup_(leave) struct handle *version = enter(object, VERSION);
	if (!version || !(collector.into = PyList_New(0)))
		return NULL;
	int r = UNLOCKED(forebay_version_items(version->it, after, items, PAGE_ITEMS, &n));
	for (size_t i = 0; r >= 0 && i < n && !collector.failed; i++)
		collect(&collector, NULL, item_tuple(&items[i]));
	return collected(&collector, r);
}

/* ---- load -------------------------------------------------------------------------------------------------------------- */

static PyObject *load_begin(PyObject *module, PyObject *args)
{
	struct forebay_load *load = NULL;
	PyObject *object, *member;

	if (!PyArg_ParseTuple(args, "OO", &object, &member))
		return NULL;
	_cleanup_(leave) struct handle *version = enter(object, VERSION);
	_cleanup_(leave) struct handle *group = NULL;
	if (!version || !enter_group(member, &group))
		return NULL;
	struct handle *handle = handle_new(LOAD, version, group);
	if (!handle)
		return NULL;
	int r = UNLOCKED(forebay_load_begin(version->it, group ? group->it : NULL, &load));
	return handle_or_fail(handle, load, r);
}

/* The item of which the load wants a box. False with forebay.Error. */
static bool find_item(struct handle *load, const char *name, struct forebay_item_info *ret)
{
	_cleanup_(leave) struct handle *version = enter((PyObject *)load->from[0], VERSION);

	ret->size = sizeof(*ret);
	int r = version ? UNLOCKED(forebay_version_find(version->it, name, ret)) : 0;
	if (r < 0)
		fail(r);
	return version && r >= 0;
}

/* Whether the tensor's shape fits into the item at box->start, whole fits whole. Else an exception that names both. */
static bool check_fit(const struct tensor *tensor, const struct box *box, const struct forebay_item_info *item)
{
	char words[1024], is[256], has[256], start[256] = "";
	bool fits = tensor->ndim == item->ndim;

	for (uint32_t i = 0; fits && i < item->ndim; i++)
		fits = box->whole ?
			       tensor->shape[i] == item->shape[i] :
			       tensor->shape[i] <= item->shape[i] && box->start[i] <= item->shape[i] - tensor->shape[i];
	if (fits)
		return true;
	if (!box->whole)
		shape_text(start, sizeof(start), tensor->ndim, box->start);
	snprintf(words, sizeof(words), "%.200s: its shape %s does not fit a target of shape %s%s%s", item->name,
		 shape_text(is, sizeof(is), item->ndim, item->shape),
		 shape_text(has, sizeof(has), tensor->ndim, tensor->shape), box->whole ? "" : " at ", start);
	fail_with(-FOREBAY_EMISMATCH, words);
	return false;
}

/* Whether a bytearray has the size of the item, whatever its type. Else ValueError. */
static bool check_raw(const struct tensor *tensor, const struct forebay_item_info *item)
{
	char shape[256];

	if (item->bytes == tensor->bytes)
		return true;
	PyErr_Format(PyExc_ValueError, "%s: a bytearray of %llu bytes for the %llu of %s %s", item->name,
		     (unsigned long long)tensor->bytes, (unsigned long long)item->bytes, item->dtype,
		     shape_text(shape, sizeof(shape), item->ndim, item->shape));
	return false;
}

static PyObject *load_into(PyObject *module, PyObject *args)
{
	PyObject *object, *out, *start;
	const char *name, *dtype;
	struct tensor tensor;
	struct box box;

	if (!PyArg_ParseTuple(args, "OsOOz", &object, &name, &out, &start, &dtype))
		return NULL;
	_cleanup_(cleanup_lent) struct lent *lent = tensor_lend(out, name, true, &tensor);
	if (!lent || !to_box(&tensor, name, Py_None, start, &box) || (dtype && !pick_dtype(&tensor, name, dtype)))
		return NULL;
	if (tensor_repeats(&tensor)) {
		PyErr_Format(PyExc_ValueError, "%s: elements of the target share memory", name);
		return NULL;
	}
	_cleanup_(leave) struct handle *load = enter(object, LOAD);
	if (!load)
		return NULL;

	struct forebay_item_info item;
	bool is_raw = PyByteArray_Check(out) && !dtype && box.whole;
	if (!find_item(load, name, &item) || !(is_raw ? check_raw(&tensor, &item) : check_fit(&tensor, &box, &item)))
		return NULL;
	const char *own = PyByteArray_Check(out) || !tensor.dtype[0] ? NULL : tensor.dtype;
	struct forebay_target target = {
		.size = sizeof(target),
		.name = name,
		.dtype = dtype ? dtype : own,
		.element_bits = is_raw ? 0 : tensor.element_bits,
		.ndim = item.ndim,
		.start = box.whole ? NULL : box.start,
		.count = box.whole ? NULL : tensor.shape,
		.data = tensor.data,
		.strides_bytes = tensor.contiguous ? NULL : tensor.strides_bytes,
	};
	int r = UNLOCKED(forebay_load_into(load->it, &target, 1));
	if (r < 0)
		return fail(r);
	lent->next = load->lent;
	load->lent = lent;
	lent = NULL;
	Py_RETURN_NONE;
}

static PyObject *load_submit(PyObject *module, PyObject *object)
{
	_cleanup_(leave) struct handle *load = enter(object, LOAD);
	struct forebay_future *future = NULL;

	if (!load)
		return NULL;
	int r = UNLOCKED(forebay_load_submit(load->it, &future));
	return r < 0 ? fail(r) : future_new(load, future, true);
}

static PyObject *load_stats(PyObject *module, PyObject *object)
{
	_cleanup_(leave) struct handle *load = enter(object, LOAD);
	struct collector collector = { 0 };

	if (!load || !(collector.into = PyDict_New()))
		return NULL;
	int r = UNLOCKED(forebay_load_stats(load->it, each_figure, &collector));
	return collected(&collector, r);
}

/* ---- the module -------------------------------------------------------------------------------------------------------- */

static PyMethodDef handle_methods[] = {
	{ "close", handle_close, METH_NOARGS, "Closes it; a session's groups, saves, versions and loads first." },
	{ 0 },
};
static PyType_Slot handle_slots[] = {
	{ Py_tp_doc, "A session, group, save, version or load of the library." },
	{ Py_tp_new, refuse_new },
	{ Py_tp_dealloc, handle_dealloc },
	{ Py_tp_methods, handle_methods },
	{ 0 },
};
static PyType_Spec handle_spec = { "forebay._forebay.Handle", sizeof(struct handle), 0, Py_TPFLAGS_DEFAULT,
				   handle_slots };

static PyMethodDef future_methods[] = {
	{ "wait", future_wait, METH_VARARGS, "wait(seconds or None): None, forebay.Error or TimeoutError." },
	{ "done", future_done, METH_NOARGS, "Whether it is over." },
	{ "fileno", future_fileno, METH_NOARGS, "A descriptor that is readable once it is over." },
	{ 0 },
};
static PyType_Slot future_slots[] = {
	{ Py_tp_doc, "The end of a stage of a save, or of a load." },
	{ Py_tp_new, refuse_new },
	{ Py_tp_dealloc, future_dealloc },
	{ Py_tp_methods, future_methods },
	{ 0 },
};
static PyType_Spec future_spec = { "forebay._forebay.Future", sizeof(struct future), 0, Py_TPFLAGS_DEFAULT,
				   future_slots };

static PyMethodDef functions[] = {
	{ "connect", connect_, METH_VARARGS, "connect(socket or None, timeout_s) -> session" },
	{ "list_bundles", list_bundles, METH_VARARGS,
	  "(session, prefix) -> [(name, versions, latest, keep_last, keep_every)]" },
	{ "list_versions", list_versions, METH_VARARGS,
	  "(session, bundle) -> [(number, step, items, bytes, stored_bytes, attributes)]" },
	{ "list_labels", list_labels, METH_VARARGS, "(session, bundle) -> {label: number}" },
	{ "label", label, METH_VARARGS, "(session, bundle, label, number, expect or None)" },
	{ "delete", delete, METH_VARARGS, "(session, bundle, number)" },
	{ "retain", retain, METH_VARARGS, "(session, bundle, last, every)" },
	{ "status", status, METH_O, "(session) -> dict" },
	{ "group_join", group_join, METH_VARARGS, "(session, name, run, rank, size, timeout_s) -> group" },
	{ "group_incarnation", group_incarnation, METH_O, "(group) -> int" },
	{ "save_begin", save_begin, METH_VARARGS,
	  "(group, bundle, step, copies, policy, same_structure, parent, ((key, value), ...)) -> save" },
	{ "save_add", save_add, METH_VARARGS, "(save, name, data, shape, start, dtype, lowest_wins)" },
	{ "save_submit", save_submit, METH_O, "(save)" },
	{ "save_future", save_future, METH_VARARGS, "(save, stage) -> Future" },
	{ "save_version", save_version, METH_O, "(save) -> int" },
	{ "save_stats", save_stats, METH_O, "(save) -> {name: int}" },
	{ "save_cancel", save_cancel, METH_O, "(save)" },
	{ "open", open_, METH_VARARGS, "(session, group or None, bundle, version) -> version" },
	{ "version_info", version_info, METH_O, "(version) -> (bundle, number, step, items, bytes, attributes)" },
	{ "version_find", version_find, METH_VARARGS, "(version, name) -> (name, dtype, element_bits, shape, bytes)" },
	{ "version_items", version_items, METH_VARARGS, "(version, after or None) -> a page, as of version_find" },
	{ "load_begin", load_begin, METH_VARARGS, "(version, group or None) -> load" },
	{ "load_into", load_into, METH_VARARGS, "(load, name, out, start, dtype)" },
	{ "load_submit", load_submit, METH_O, "(load) -> Future" },
	{ "load_stats", load_stats, METH_O, "(load) -> {name: int}" },
	{ 0 },
};
static struct PyModuleDef definition = {
	.m_base = PyModuleDef_HEAD_INIT,
	.m_name = "forebay._forebay",
	.m_doc = "forebay.h for Python. Use the package forebay.",
	.m_size = -1, /* types and handles are the process's: one interpreter */
	.m_methods = functions,
};

static const char error_doc[] = "What Forebay could not do, in words.\n\n"
				"code    positive errno or FOREBAY_E... number; 0 if not known\n"
				"name    \"FOREBAY_ERANK\", \"ENOENT\", ...; \"\" if not known\n";

static PyObject *error_new(void)
{
	_cleanup_(cleanup_object) PyObject *defaults = Py_BuildValue("{siss}", "code", 0, "name", "");

	return defaults ? PyErr_NewExceptionWithDoc("forebay.Error", error_doc, NULL, defaults) : NULL;
}

static bool add_object(PyObject *module, const char *name, void *object)
{
	Py_XINCREF((PyObject *)object);
	return object && !PyModule_AddObject(module, name, object);
}

PyMODINIT_FUNC PyInit__forebay(void)
{
	if (forebay_abi() != FOREBAY_ABI)
		return PyErr_Format(PyExc_ImportError, "libforebay has ABI %d, this extension was built for %d",
				    forebay_abi(), FOREBAY_ABI);
	PyObject *module = PyModule_Create(&definition);
	error_type = error_new();
	handle_type = (PyTypeObject *)PyType_FromSpec(&handle_spec);
	future_type = (PyTypeObject *)PyType_FromSpec(&future_spec);
	if (module && add_object(module, "Error", error_type) && add_object(module, "Handle", handle_type) &&
	    add_object(module, "Future", future_type))
		return module;
	Py_XDECREF(module);
	return NULL;
}
