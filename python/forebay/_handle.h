/*
 * _handle.h: what the functions of _forebay.c share: errors, arguments, handles and futures. Private to that file, which alone
 * includes it.
 *
 * A handle is a session, group, save, version or load. It holds what it was made from, so the order in which objects are
 * collected does not matter; calls on one handle wait for each other, as forebay.h asks. A future may be used by any number of
 * threads. The GIL is released in every call of the library, since any of them may wait for the lock under which another
 * thread's call is.
 *
 * Memory that is offered is kept until nothing reads it. A submitted save holds itself for that long, even if nobody else
 * does: the other ranks need its part. It is let go when the next save, wait or the like begins or ends after it was captured.
 */
#pragma once

#include "_tensor.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

#include "forebay/forebay.h"

#define SLICE_MS 100 /* at most so long a wait does not see Ctrl-C */

#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* The value of a call of the library, made without the GIL. */
#define UNLOCKED(call)                                       \
	({                                                   \
		PyThreadState *_state = PyEval_SaveThread(); \
		typeof(call) _value = (call);                \
		PyEval_RestoreThread(_state);                \
		_value;                                      \
	})

static PyObject *error_type; /* forebay.Error */
static PyTypeObject *handle_type, *future_type;

static void cleanup_object(PyObject **object)
{
	Py_XDECREF(*object);
}

static void cleanup_lent(struct lent **lent)
{
	lent_free(*lent);
}

/* ---- errors ------------------------------------------------------------------------------------------------------------ */

static bool set_attribute(PyObject *object, const char *name, PyObject *value)
{
	_cleanup_(cleanup_object) PyObject *owned = value;

	return owned && !PyObject_SetAttrString(object, name, owned);
}

/* Raises forebay.Error for a negative code of the library. Always NULL. */
static PyObject *fail_with(int code, const char *words)
{
	const char *name = forebay_error_name(code);
	const char *said = words && *words ? words : name;
	_cleanup_(cleanup_object) PyObject *text = PyUnicode_DecodeUTF8(said, (Py_ssize_t)strlen(said), "replace");
	_cleanup_(cleanup_object) PyObject *error = text ? PyObject_CallFunctionObjArgs(error_type, text, NULL) : NULL;

	if (error && set_attribute(error, "code", PyLong_FromLong(code < 0 ? -(long)code : code)) &&
	    set_attribute(error, "name", PyUnicode_FromString(name)))
		PyErr_SetObject(error_type, error);
	return NULL;
}

/* As fail_with(), in the words that the library has for this thread's last failure. */
static PyObject *fail(int code)
{
	return fail_with(code, forebay_error());
}

static PyObject *none_or_fail(int r)
{
	if (r < 0)
		return fail(r);
	Py_RETURN_NONE;
}

static bool is_same_process(pid_t pid)
{
	char words[128];

	if (pid == getpid())
		return true;
	snprintf(words, sizeof(words), "the session is that of process %ld, before fork(): connect again in this one",
		 (long)pid);
	fail_with(-FOREBAY_EFORKED, words);
	return false;
}

/* ---- arguments --------------------------------------------------------------------------------------------------------- */

/* Converters for PyArg_ParseTuple's O&. */
static int to_u64(PyObject *object, void *ret)
{
	_cleanup_(cleanup_object) PyObject *number = PyNumber_Index(object);
	unsigned long long value = number ? PyLong_AsUnsignedLongLong(number) : 0;

	if (PyErr_Occurred())
		return 0;
	*(uint64_t *)ret = value;
	return 1;
}

static int to_u32(PyObject *object, void *ret)
{
	uint64_t value;

	if (!to_u64(object, &value))
		return 0;
	if (value > UINT32_MAX) {
		PyErr_Format(PyExc_OverflowError, "%R does not fit in 32 bits", object);
		return 0;
	}
	*(uint32_t *)ret = (uint32_t)value;
	return 1;
}

/* Seconds, None for ever, as milliseconds for forebay.h. */
static int to_ms(PyObject *object, void *ret)
{
	if (object == Py_None) {
		*(int *)ret = -1;
		return 1;
	}
	double seconds = PyFloat_AsDouble(object);
	if (PyErr_Occurred())
		return 0;
	if (isnan(seconds)) {
		PyErr_SetString(PyExc_ValueError, "a timeout is a number of seconds, or None");
		return 0;
	}
	double ms = ceil(seconds * 1000);
	*(int *)ret = ms <= 0 ? 0 : ms >= INT_MAX ? INT_MAX : (int)ms;
	return 1;
}

/* @sequence as numbers; @what and @name for errors. */
static bool to_numbers(PyObject *sequence, const char *name, const char *what, uint32_t ndim, uint64_t *ret)
{
	_cleanup_(cleanup_object) PyObject *tuple = PySequence_Tuple(sequence);

	if (!tuple)
		return false;
	if (PyTuple_Size(tuple) != (Py_ssize_t)ndim) {
		PyErr_Format(PyExc_ValueError, "%s: %s %R is not of the data's %u dimensions", name, what, tuple, ndim);
		return false;
	}
	for (uint32_t i = 0; i < ndim; i++) {
		if (to_u64(PyTuple_GetItem(tuple, i), &ret[i]))
			continue;
		PyErr_Format(PyExc_ValueError, "%s: %s %R: not numbers from 0", name, what, tuple);
		return false;
	}
	return true;
}

/* ---- handles ----------------------------------------------------------------------------------------------------------- */

enum kind { SESSION, GROUP, SAVE, VERSION, LOAD, KINDS };

static const char *const nouns[] = { "session", "group", "save", "version", "load" };

struct handle {
	PyObject_HEAD enum kind kind;
	pid_t pid;
	PyThread_type_lock lock;	 /* held during each call */
	void *it;			 /* the library's; NULL: closed */
	struct handle *session;		 /* that it belongs to; NULL for a session. Borrowed: from[] keeps it */
	struct handle *from[2];		 /* what it was made from; NULL: nothing more */
	struct lent *lent;		 /* memory that the library may touch */
	struct forebay_future *captured; /* of a submitted save */
	bool holds_itself;		 /* in flight: one reference is the handle's own */
	bool ended;			 /* closed, and the library has done with its memory: `it` is NULL sooner */
	struct handle *next;		 /* in all_handles */
};

static struct handle *all_handles; /* under the GIL, as all members but `it` */

static void end(enum kind kind, void *it)
{
	switch (kind) {
	case SESSION:
		forebay_disconnect(it);
		break;
	case GROUP:
		forebay_group_leave(it);
		break;
	case SAVE:
		forebay_save_free(it);
		break;
	case VERSION:
		forebay_close(it);
		break;
	default:
		forebay_load_free(it);
	}
}

/* Gives memory back. That may run anything, calls on the same handle too: hold no lock. */
static void drop_lent(struct handle *handle)
{
	while (handle->lent) {
		struct lent *lent = handle->lent;

		handle->lent = lent->next;
		lent_free(lent);
	}
}

static bool is_over(struct forebay_future *future)
{
	return forebay_wait(future, 0) != -ETIMEDOUT;
}

/*
 * Lets go of submitted saves that have been captured, or have failed. Asks no one but the library. For calls that begin or end
 * something; like drop_lent() it may run anything.
 */
static void sweep(void)
{
	struct handle *handle = all_handles;

	while (handle) {
		bool over = handle->holds_itself && (handle->ended || is_over(handle->captured));
		if (!over || handle->pid != getpid()) {
			handle = handle->next;
			continue;
		}
		handle->holds_itself = false;
		drop_lent(handle);
		Py_DECREF(handle);
		handle = all_handles; /* which may be others now */
	}
}

static bool lock(struct handle *handle)
{
	if (PyThread_acquire_lock(handle->lock, NOWAIT_LOCK))
		return true;
	while (UNLOCKED(PyThread_acquire_lock_timed(handle->lock, SLICE_MS * 1000, 1)) != PY_LOCK_ACQUIRED)
		if (PyErr_CheckSignals())
			return false;
	return true;
}

/* The handle of that kind, for one call; NULL with an exception if it is closed. The caller's arguments keep it. */
static struct handle *enter(PyObject *object, enum kind kind)
{
	struct handle *handle = (struct handle *)object;

	if (Py_TYPE(object) != handle_type || handle->kind != kind) {
		PyErr_Format(PyExc_TypeError, "the handle of a %s is needed", nouns[kind]);
		return NULL;
	}
	if (!is_same_process(handle->pid) || !lock(handle))
		return NULL;
	if (handle->it)
		return handle;

	char words[64];
	PyThread_release_lock(handle->lock);
	snprintf(words, sizeof(words), "the %s is closed", nouns[kind]);
	fail_with(-EBADF, words);
	return NULL;
}

static void leave(struct handle **handle)
{
	if (*handle)
		PyThread_release_lock((*handle)->lock);
}

/* A handle without a library's object yet; @from and @also may be NULL. */
static struct handle *handle_new(enum kind kind, struct handle *from, struct handle *also)
{
	struct handle *handle = PyObject_New(struct handle, handle_type);
	PyThread_type_lock new_lock = handle ? PyThread_allocate_lock() : NULL;

	if (!handle)
		return NULL;
	memset((char *)handle + sizeof(PyObject), 0, sizeof(*handle) - sizeof(PyObject));
	handle->kind = kind;
	handle->pid = getpid();
	handle->lock = new_lock;
	Py_XINCREF(from);
	Py_XINCREF(also);
	handle->from[0] = from;
	handle->from[1] = also;
	handle->session = from && from->session ? from->session : from;
	handle->next = all_handles;
	all_handles = handle;
	if (!new_lock) {
		Py_DECREF(handle);
		PyErr_NoMemory();
		return NULL;
	}
	return handle;
}

/* Gives the handle what the library made, or an exception. Consumes it. */
static PyObject *handle_or_fail(struct handle *handle, void *it, int r)
{
	if (r >= 0) {
		handle->it = it;
		return (PyObject *)handle;
	}
	fail(r);
	Py_DECREF(handle);
	return NULL;
}

/*
 * Ends the library's object, waiting until it touches no memory. The lock is held, or nobody else has the handle. In a child
 * of the process it is left alone: its threads and locks are not here.
 */
static void finish(struct handle *handle)
{
	void *it = handle->it;

	handle->it = NULL;
	if (!it || handle->pid != getpid())
		return;
	PyThreadState *state = PyEval_SaveThread();
	end(handle->kind, it);
	PyEval_RestoreThread(state);
	handle->ended = true;
}

static void free_future(struct forebay_future *future, pid_t pid)
{
	if (pid != getpid())
		return;
	PyThreadState *state = PyEval_SaveThread();
	forebay_future_free(future);
	PyEval_RestoreThread(state);
}

static void handle_dealloc(PyObject *self)
{
	struct handle *handle = (struct handle *)self, **at = &all_handles;
	PyTypeObject *type = Py_TYPE(self);

	while (*at != handle)
		at = &(*at)->next;
	*at = handle->next;
	finish(handle);
	drop_lent(handle);
	if (handle->captured)
		free_future(handle->captured, handle->pid);
	if (handle->lock)
		PyThread_free_lock(handle->lock);
	Py_XDECREF(handle->from[1]);
	Py_XDECREF(handle->from[0]);
	PyObject_Free(self);
	Py_DECREF(type);
}

static bool close_one(struct handle *handle)
{
	if (!lock(handle))
		return false;
	finish(handle);
	PyThread_release_lock(handle->lock);
	drop_lent(handle);
	return true;
}

/* An open handle of the session, those first that others are made from last; NULL: none. */
static struct handle *find_open(struct handle *session)
{
	struct handle *found = NULL;

	for (struct handle *handle = all_handles; handle; handle = handle->next)
		if (handle->session == session && handle->it && (!found || handle->kind > found->kind))
			found = handle;
	return found;
}

/* Closes the handle, of a session all that was made from it first. Closing again does nothing. */
static PyObject *handle_close(PyObject *self, PyObject *unused)
{
	struct handle *handle = (struct handle *)self;

	if (!is_same_process(handle->pid))
		return NULL;
	for (;;) {
		struct handle *inner = handle->kind == SESSION ? find_open(handle) : NULL;

		Py_XINCREF(inner);
		bool good = !inner || close_one(inner);
		Py_XDECREF(inner);
		if (!good)
			return NULL;
		if (!inner)
			break;
	}
	if (!close_one(handle))
		return NULL;
	sweep();
	Py_RETURN_NONE;
}

static PyObject *refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	PyErr_SetString(PyExc_TypeError, "handles come from the functions of this module");
	return NULL;
}

/* ---- futures ----------------------------------------------------------------------------------------------------------- */

struct future {
	PyObject_HEAD struct forebay_future *it;
	struct handle *of; /* save or load */
	bool frees_memory; /* once over, whatever came of it, the library touches no memory of `of` */
};

static PyObject *future_new(struct handle *of, struct forebay_future *it, bool frees_memory)
{
	struct future *future = PyObject_New(struct future, future_type);

	if (!future) {
		free_future(it, of->pid);
		return NULL;
	}
	Py_INCREF(of);
	future->it = it;
	future->of = of;
	future->frees_memory = frees_memory;
	return (PyObject *)future;
}

static void future_dealloc(PyObject *self)
{
	struct future *future = (struct future *)self;
	PyTypeObject *type = Py_TYPE(self);

	free_future(future->it, future->of->pid);
	Py_DECREF(future->of);
	PyObject_Free(self);
	Py_DECREF(type);
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Its outcome, known to be over: None or forebay.Error. */
static PyObject *future_outcome(struct future *future, int r)
{
	if (future->frees_memory || !r)
		drop_lent(future->of);
	sweep();
	if (r)
		return fail_with(r, UNLOCKED(forebay_future_error(future->it)));
	Py_RETURN_NONE;
}

/* wait(timeout): in slices, so that signals are handled. */
static PyObject *future_wait(PyObject *self, PyObject *args)
{
	struct future *future = (struct future *)self;
	int timeout_ms;

	if (!PyArg_ParseTuple(args, "O&", to_ms, &timeout_ms) || !is_same_process(future->of->pid))
		return NULL;
	int64_t end_ms = now_ms() + timeout_ms;
	for (;;) {
		int64_t left_ms = timeout_ms < 0 ? SLICE_MS : end_ms - now_ms();
		int slice_ms = left_ms < 0 ? 0 : left_ms > SLICE_MS ? SLICE_MS : (int)left_ms;

		if (UNLOCKED(forebay_wait(future->it, slice_ms)) != -ETIMEDOUT || UNLOCKED(is_over(future->it)))
			return future_outcome(future, UNLOCKED(forebay_wait(future->it, 0)));
		if (PyErr_CheckSignals())
			return NULL;
		if (timeout_ms >= 0 && left_ms <= slice_ms)
			break;
	}
	PyErr_Format(PyExc_TimeoutError, "not over after %d ms", timeout_ms);
	return NULL;
}

static PyObject *future_done(PyObject *self, PyObject *unused)
{
	struct future *future = (struct future *)self;

	if (!is_same_process(future->of->pid))
		return NULL;
	bool over = UNLOCKED(is_over(future->it));
	if (over && future->frees_memory)
		drop_lent(future->of);
	return PyBool_FromLong(over);
}

static PyObject *future_fileno(PyObject *self, PyObject *unused)
{
	struct future *future = (struct future *)self;

	if (!is_same_process(future->of->pid))
		return NULL;
	int fd = UNLOCKED(forebay_future_fd(future->it));
	return fd < 0 ? fail(fd) : PyLong_FromLong(fd);
}
