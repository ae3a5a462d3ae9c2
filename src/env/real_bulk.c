/*
 * The mover: one thread that executes bulk descriptors. Its invariant: whatever a `struct bulk` holds is touched by the
 * mover's thread alone, but for the inbox and the closing mark, which are under the lock; and an operation is on its way
 * to the loop only when the mover touches neither its head nor its span any more.
 *
 * The mover works in rounds. In each it takes what the loop has sent, lets every stream that can go on move a few pieces,
 * and hands all operations that ended back at once. With nothing to do it polls for a moment before it sleeps, since
 * waking it from another core costs about 20 us.
 */
#include "env/real.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/hash.h"

#define PIECE_BYTES	 (64u << 10)	      /* copied, summed and sent while it lies in the cache */
#define STAGE_BYTES	 (PIECE_BYTES + 512u) /* a piece, with a head before it or a sum after it */
#define PIECES_PER_ROUND 4		      /* of one direction of a stream, before the others have their turn */
#define SPIN_NS		 UINT64_C(20000)
#define MOVER_EVENTS	 64
#define SUM_BYTES	 4

/* A stream as the mover knows it. */
struct bulk {
	int fd;
	struct list signalled; /* in the mover's list of that name; under its lock */
	struct list inbox;     /* operations that the mover has not taken; under its lock */
	bool closing;	       /* under its lock */

	bool watched; /* in the mover's epoll */
	struct list active;
	struct list sends, receives;   /* first come, first served */
	bool can_send, can_receive;    /* the last call did not answer -EAGAIN, or an event has come since */
	int send_error, receive_error; /* a direction that has failed stays so */

	uint8_t *stage; /* STAGE_BYTES: the private copy of what is being sent; from the first send on */
	size_t stage_from, stage_len;
	uint8_t received_sum[SUM_BYTES];
};

static size_t op_bytes(const struct bulk_op *op)
{
	return op->head_len + op->span_len + (op->span_len ? SUM_BYTES : 0);
}

static void op_finish(struct mover *mover, struct bulk_op *op, int result)
{
	op->result = result;
	list_remove(&op->link);
	list_append(&mover->finished, &op->link);
	mover->n_ops--;
}

/* All of one direction's operations end with @result. */
static void ops_finish(struct mover *mover, struct list *ops, int result)
{
	while (!list_empty(ops))
		op_finish(mover, list_entry(ops->next, struct bulk_op, link), result);
}

/* ---- sending ---- */

/* Adds to the stage what of [start, start + len) of the operation comes next; progress counts what was staged. */
static void stage_part(struct bulk *bulk, struct bulk_op *op, const uint8_t *part, size_t start, size_t len, size_t max)
{
	if (op->progress < start || op->progress >= start + len)
		return;

	size_t skip = op->progress - start, n = len - skip, room = STAGE_BYTES - bulk->stage_len;
	if (n > room)
		n = room;
	if (n > max)
		n = max;
	memcpy(bulk->stage + bulk->stage_len, part + skip, n);
	bulk->stage_len += n;
	op->progress += n;
}

/* Copies the next piece to private memory and sums the copy: the span may change under our hands. */
static void stage_fill(struct bulk *bulk, struct bulk_op *op)
{
	uint8_t sum[SUM_BYTES];

	bulk->stage_from = bulk->stage_len = 0;
	stage_part(bulk, op, op->head, 0, op->head_len, STAGE_BYTES);
	if (!op->span_len)
		return;

	size_t span_at = bulk->stage_len;
	stage_part(bulk, op, op->span, op->head_len, op->span_len, PIECE_BYTES);
	op->crc = crc32c(op->crc, bulk->stage + span_at, bulk->stage_len - span_at);

	store_le32(sum, op->crc);
	stage_part(bulk, op, sum, op->head_len + op->span_len, SUM_BYTES, SUM_BYTES);
}

/* Sends one stage full of the first operation at most. */
static void bulk_send(struct mover *mover, struct bulk *bulk)
{
	struct bulk_op *op = list_entry(bulk->sends.next, struct bulk_op, link);
	size_t total = op_bytes(op);

	if (bulk->stage_from == bulk->stage_len)
		stage_fill(bulk, op);

	if (bulk->stage_from < bulk->stage_len) { /* not so for an empty operation */
		int more = op->progress < total ? MSG_MORE : 0;
		ssize_t n = send(bulk->fd, bulk->stage + bulk->stage_from, bulk->stage_len - bulk->stage_from,
				 MSG_DONTWAIT | MSG_NOSIGNAL | more);

		if (n < 0 && errno == EINTR)
			return;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			bulk->can_send = false;
			return;
		}
		if (n < 0) {
			bulk->send_error = -errno;
			return;
		}
		bulk->stage_from += (size_t)n;
	}
	if (op->progress == total && bulk->stage_from == bulk->stage_len)
		op_finish(mover, op, 0);
}

/* ---- receiving ---- */

/* Where the next bytes go: the span up to a piece, and with its last piece also the sum and the head that follows. */
static int receive_places(struct bulk *bulk, const struct bulk_op *op, struct iovec iov[3])
{
	size_t at = op->progress, sum_end = op_bytes(op) - op->head_len;
	int n = 0;

	if (at < op->span_len) {
		size_t left = op->span_len - at, len = left < PIECE_BYTES ? left : PIECE_BYTES;

		iov[n++] = (struct iovec){ op->span + at, len };
		at += len;
		if (at < op->span_len)
			return n;
	}
	if (at < sum_end) {
		iov[n++] = (struct iovec){ bulk->received_sum + (at - op->span_len), sum_end - at };
		at = sum_end;
	}
	if (op->head_len)
		iov[n++] = (struct iovec){ op->head + (at - sum_end), op->head_len - (at - sum_end) };
	return n;
}

static int receive_verdict(const struct bulk *bulk, const struct bulk_op *op)
{
	return op->span_len && load_le32(bulk->received_sum) != op->crc ? -EBADMSG : 0;
}

/* Receives once, for the first operation. A wrong sum ends only that operation: the stream is still in step. */
static void bulk_receive(struct mover *mover, struct bulk *bulk)
{
	struct bulk_op *op = list_entry(bulk->receives.next, struct bulk_op, link);

	if (op->progress < op_bytes(op)) {
		struct iovec iov[3];
		struct msghdr message = { .msg_iov = iov, .msg_iovlen = (size_t)receive_places(bulk, op, iov) };
		ssize_t n = recvmsg(bulk->fd, &message, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			return;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			bulk->can_receive = false;
			return;
		}
		if (n <= 0) {
			bulk->receive_error = n < 0 ? -errno : -ECONNRESET;
			return;
		}
		if (op->progress < op->span_len) {
			size_t left = op->span_len - op->progress, len = (size_t)n < left ? (size_t)n : left;
			op->crc = crc32c(op->crc, op->span + op->progress, len);
		}
		op->progress += (size_t)n;
	}
	if (op->progress == op_bytes(op))
		op_finish(mover, op, receive_verdict(bulk, op));
}

/* ---- streams ---- */

static bool bulk_can_go_on(const struct bulk *bulk)
{
	return (!list_empty(&bulk->sends) && (bulk->can_send || bulk->send_error)) ||
	       (!list_empty(&bulk->receives) && (bulk->can_receive || bulk->receive_error));
}

static void bulk_activate(struct mover *mover, struct bulk *bulk)
{
	if (list_empty(&bulk->active) && bulk_can_go_on(bulk))
		list_append(&mover->active, &bulk->active);
}

static void bulk_work(struct mover *mover, struct bulk *bulk)
{
	for (int i = 0; i < PIECES_PER_ROUND && !list_empty(&bulk->sends) && bulk->can_send && !bulk->send_error; i++)
		bulk_send(mover, bulk);
	if (bulk->send_error)
		ops_finish(mover, &bulk->sends, bulk->send_error);

	for (int i = 0;
	     i < PIECES_PER_ROUND && !list_empty(&bulk->receives) && bulk->can_receive && !bulk->receive_error; i++)
		bulk_receive(mover, bulk);
	if (bulk->receive_error)
		ops_finish(mover, &bulk->receives, bulk->receive_error);
}

static void bulk_watch(struct mover *mover, struct bulk *bulk)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = bulk };

	bulk->watched = true;
	bulk->can_send = bulk->can_receive = true; /* until a call says otherwise */
	if (epoll_ctl(mover->epoll_fd, EPOLL_CTL_ADD, bulk->fd, &event) < 0)
		bulk->send_error = bulk->receive_error = -errno;
}

static void bulk_free(struct mover *mover, struct bulk *bulk)
{
	/* Closing alone leaves it in the epoll if a forked process still holds the socket. */
	epoll_ctl(mover->epoll_fd, EPOLL_CTL_DEL, bulk->fd, NULL);
	fd_close(&bulk->fd);
	free(bulk->stage);
	free(bulk);
}

static void bulk_cancel(struct mover *mover, struct bulk *bulk)
{
	ops_finish(mover, &bulk->sends, -ECANCELED);
	ops_finish(mover, &bulk->receives, -ECANCELED);
	list_remove(&bulk->active);
	bulk_free(mover, bulk);
}

/* ---- the thread ---- */

static void take_ops(struct mover *mover, struct bulk *bulk, struct list *inbox)
{
	struct list *node;

	while ((node = list_pop(inbox))) {
		struct bulk_op *op = list_entry(node, struct bulk_op, link);

		list_append(op->send ? &bulk->sends : &bulk->receives, node);
		mover->n_ops++;
	}
}

/* Moves all of @from to the end of @to. */
static void list_move_all(struct list *to, struct list *from)
{
	struct list *node;

	while ((node = list_pop(from)))
		list_append(to, node);
}

/* Takes what the loop has sent. False: it wants the thread to end. */
static bool mover_take(struct mover *mover)
{
	if (!__atomic_load_n(&mover->pending, __ATOMIC_ACQUIRE))
		return true;

	for (;;) {
		struct list inbox;

		list_init(&inbox);
		pthread_mutex_lock(&mover->lock);
		struct list *node = list_pop(&mover->signalled);
		if (!node) {
			__atomic_store_n(&mover->pending, false, __ATOMIC_RELEASE);
			bool stop = mover->stop;
			pthread_mutex_unlock(&mover->lock);
			return !stop;
		}
		struct bulk *bulk = list_entry(node, struct bulk, signalled);
		list_move_all(&inbox, &bulk->inbox);
		bool closing = bulk->closing;
		pthread_mutex_unlock(&mover->lock);

		take_ops(mover, bulk, &inbox);
		if (closing) {
			bulk_cancel(mover, bulk);
			continue;
		}
		if (!bulk->watched)
			bulk_watch(mover, bulk);
		bulk_activate(mover, bulk);
	}
}

static void mover_work(struct mover *mover)
{
	struct list round;
	struct list *node;

	list_init(&round);
	list_move_all(&round, &mover->active);
	while ((node = list_pop(&round))) {
		struct bulk *bulk = list_entry(node, struct bulk, active);

		bulk_work(mover, bulk);
		bulk_activate(mover, bulk);
	}
}

/* Hands what has ended to the loop; one wake is enough until the loop has come for it. */
static void mover_return(struct mover *mover)
{
	if (list_empty(&mover->finished))
		return;
	pthread_mutex_lock(&mover->lock);
	list_move_all(&mover->completed, &mover->finished);
	pthread_mutex_unlock(&mover->lock);
	loop_post_remote(mover->loop, &mover->deliver);
}

static int mover_poll(struct mover *mover, int timeout_ms)
{
	struct epoll_event events[MOVER_EVENTS];
	int n = epoll_wait(mover->epoll_fd, events, MOVER_EVENTS, timeout_ms);

	for (int i = 0; i < n; i++) {
		struct bulk *bulk = events[i].data.ptr;

		if (!bulk) /* the wake descriptor */
			continue;
		if (events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP))
			bulk->can_receive = true;
		if (events[i].events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
			bulk->can_send = true;
		bulk_activate(mover, bulk);
	}
	return n;
}

static bool mover_spin(struct mover *mover)
{
	uint64_t until_ns = boottime_ns() + SPIN_NS;

	do {
		if (__atomic_load_n(&mover->pending, __ATOMIC_ACQUIRE) || mover_poll(mover, 0) > 0)
			return true;
	} while (boottime_ns() < until_ns);
	return false;
}

static void mover_sleep(struct mover *mover)
{
	if (mover->n_ops && mover_spin(mover))
		return;

	pthread_mutex_lock(&mover->lock);
	mover->asleep = list_empty(&mover->signalled) && !mover->stop;
	bool asleep = mover->asleep;
	pthread_mutex_unlock(&mover->lock);
	if (!asleep)
		return;

	mover_poll(mover, -1);
	pthread_mutex_lock(&mover->lock);
	mover->asleep = false;
	pthread_mutex_unlock(&mover->lock);
}

static void *mover_run(void *arg)
{
	struct mover *mover = arg;

	while (mover_take(mover)) {
		mover_work(mover);
		mover_return(mover);
		if (list_empty(&mover->active))
			mover_sleep(mover);
		else
			mover_poll(mover, 0);
	}
	return NULL;
}

/* ---- the loop's side ---- */

static void mover_deliver(struct task *task)
{
	struct mover *mover = container_of(task, struct mover, deliver);
	struct list completed;
	struct list *node;

	list_init(&completed);
	pthread_mutex_lock(&mover->lock);
	list_move_all(&completed, &mover->completed);
	pthread_mutex_unlock(&mover->lock);
	while ((node = list_pop(&completed))) {
		struct bulk_op *op = list_entry(node, struct bulk_op, link);

		mover->n_undelivered--;
		op->done->fn(op->done, op->result);
	}
}

/* The caller holds the lock. */
static void mover_signal(struct mover *mover, struct bulk *bulk)
{
	if (list_empty(&bulk->signalled))
		list_append(&mover->signalled, &bulk->signalled);
	__atomic_store_n(&mover->pending, true, __ATOMIC_RELEASE);
	if (mover->asleep)
		event_raise(mover->wake_fd);
	mover->asleep = false; /* one wake is enough */
}

/* From here on the socket is the mover's. */
static struct bulk *bulk_new(struct stream *stream)
{
	struct bulk *bulk = calloc(1, sizeof(*bulk));

	if (!bulk)
		return NULL;
	list_init(&bulk->signalled);
	list_init(&bulk->inbox);
	list_init(&bulk->active);
	list_init(&bulk->sends);
	list_init(&bulk->receives);
	bulk->fd = stream->fd;
	epoll_ctl(stream->real->epoll_fd, EPOLL_CTL_DEL, stream->fd, NULL);
	task_cancel(&stream->ready);
	return bulk;
}

static void failed_at_once(struct task *task)
{
	struct bulk_op *op = container_of(task, struct bulk_op, task);

	op->done->fn(op->done, op->result);
}

static int bulk_prepare(struct stream *stream, const struct bulk_op *op)
{
	if (!stream->bulk)
		stream->bulk = bulk_new(stream);
	if (!stream->bulk)
		return -ENOMEM;
	if (op->send && !stream->bulk->stage) /* the mover looks at it only once it has taken a send */
		stream->bulk->stage = malloc(STAGE_BYTES);
	return op->send && !stream->bulk->stage ? -ENOMEM : 0;
}

void real_bulk(struct bulk_op *op)
{
	struct stream *stream = op->stream;

	CHECK_MAGIC(stream, STREAM_MAGIC);
	CHECK(!stream->listening && op->span_len <= BULK_CHUNK_BYTES);
	struct mover *mover = &stream->real->mover;

	op->progress = 0;
	op->crc = 0;
	op->result = bulk_prepare(stream, op);
	if (op->result) {
		op->task.fn = failed_at_once;
		loop_post(mover->loop, &op->task);
		return;
	}
	mover->n_undelivered++;
	pthread_mutex_lock(&mover->lock);
	list_append(&stream->bulk->inbox, &op->link);
	mover_signal(mover, stream->bulk);
	pthread_mutex_unlock(&mover->lock);
}

void bulk_close(struct mover *mover, struct bulk *bulk)
{
	pthread_mutex_lock(&mover->lock);
	bulk->closing = true;
	mover_signal(mover, bulk);
	pthread_mutex_unlock(&mover->lock);
}

int mover_start(struct mover *mover, struct loop *loop)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.ptr = NULL };

	mover->loop = loop;
	mover->deliver.fn = mover_deliver;
	list_init(&mover->signalled);
	list_init(&mover->completed);
	list_init(&mover->active);
	list_init(&mover->finished);
	mover->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (mover->epoll_fd < 0)
		return -errno;
	mover->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (mover->wake_fd < 0)
		return -errno;
	if (epoll_ctl(mover->epoll_fd, EPOLL_CTL_ADD, mover->wake_fd, &event) < 0)
		return -errno;
	pthread_mutex_init(&mover->lock, NULL);
	int r = thread_start(&mover->thread, "mover", mover_run, mover);
	mover->started = !r;
	return r;
}

void mover_stop(struct mover *mover)
{
	CHECK(mover->n_undelivered == 0);
	if (mover->started) {
		pthread_mutex_lock(&mover->lock);
		mover->stop = true;
		__atomic_store_n(&mover->pending, true, __ATOMIC_RELEASE);
		event_raise(mover->wake_fd);
		pthread_mutex_unlock(&mover->lock);
		pthread_join(mover->thread, NULL);
		pthread_mutex_destroy(&mover->lock);
	}
	fd_close(&mover->wake_fd);
	fd_close(&mover->epoll_fd);
}
