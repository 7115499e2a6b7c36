/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Asynchronous requests: POSIX AIO's aio_fsync, libaio's io_submit (liburing's are in uring.c).
 *
 * Whatever is put off here must still complete as the program expects: after what it queued before,
 * with result 0, with the notification that it asked for. A write-back error that a decision met is
 * told here, since the kernel would not tell it again; libaio and rings have no way to say which it
 * was: EBADF, as of a request on no file.
 */
#include "routes/routes.h"

/* libaio: struct iocb of linux/aio_abi.h, the same on 32 and 64 bit. */
struct iocb {
	uint64_t data;
	uint32_t key, rw_flags;
	uint16_t opcode;
	int16_t reqprio;
	uint32_t fd;
	uint64_t buf, nbytes;
	int64_t offset;
	uint64_t reserved;
	uint32_t flags, resfd;
};
#define IOCB_PWRITE  1
#define IOCB_FSYNC   2
#define IOCB_FDSYNC  3
#define IOCB_POLL    5
#define IOCB_PWRITEV 8
#define RWF_BOTH     6 /* RWF_DSYNC, RWF_SYNC */
#define BATCH        32

/* A directory can be synced, but not read: it stays real. */
static int is_regular(int fd)
{
	return sl_type(fd, "", 0x1000 /* AT_EMPTY_PATH */) == S_IFREG_;
}

/* As sl_copy_in. */
static int all_readable(long n, struct iocb **blocks)
{
	struct iocb *pointers[BATCH], block;
	int can = sl_copy_in(pointers, blocks, (size_t)n * sizeof *blocks);
	long i;

	for (i = 0; can == 1 && i < n; i++)
		can = sl_copy_in(&block, pointers[i], sizeof block);
	return can;
}

static int is_write(const struct iocb *b)
{
	return b->opcode == IOCB_PWRITE || b->opcode == IOCB_PWRITEV;
}

static int is_sync(const struct iocb *b)
{
	return b->opcode == IOCB_FSYNC || b->opcode == IOCB_FDSYNC;
}

/* Counts and decides a request on FD; whether it may be put off. */
static int decided(struct verdict *v, int fd)
{

	v->kept = LATER, v->error = 0;
	if (sl.levels) {
		sl_count_request(0);
		sl_decide(v, fd);
	}
	return v->kept == LATER;
}

static void keep(struct verdict *v, int fd)
{
	sl_count_kept(v->kept == LATER ? (int)SL_KEPT_AIO : v->kept, 0);
	sl_note_queued(SL_KIND_LIBAIO, fd, v, 0);
}

/* A write that asks, by its descriptor or by a flag of its own, stays real: another thread may take
 * its completion before the call returns, so no moment is right to note a debt. A flag that its
 * descriptor has lost it gets back in its block, for good, which may be somebody else's by then.
 * Returns 0, or the error that is to be told. */
static int keep_write(struct iocb *b)
{
	int own = (int)(b->rw_flags & RWF_BOTH), marks = sl_mark_flags((int)b->fd);
	struct verdict v;

	if (!(own | marks) || is_error(raw3(NR_fcntl, b->fd, 3 /* F_GETFL */, 0)) ||
	    is_error(raw_sync_file_range((int)b->fd, 0, 1, 0)))
		return 0; /* nothing asked, or the kernel gives the error */
	if (decided(&v, (int)b->fd) && UNLIKELY(v.error)) {
		sl_count_failed(0);
		return v.error;
	}
	keep(&v, (int)b->fd);
	b->rw_flags |= (uint32_t)marks;
	return 0;
}

/* Whether a block can be changed for a time, and be cancelled: nobody else has this memory, who may
 * submit it as well, and no filter but the session's forbids to cancel it, or kills at that. What
 * comes to a gate need not be alone with its filters. */
static int may_change(void)
{
#ifdef SL_GATE
	return 0;
#else
	return !sl_is_filtered() && !raw1(NR_unshare, 0x100 /* CLONE_VM: changes nothing */);
#endif
}

/* Submits a sync that is put off. The block is changed for the time of the call, and may not be
 * done by then: whoever takes its completion may free it, or use it again. So it waits for what
 * NEVER happens, is put back, and then cancelled, which completes it with 0
 * (aio_poll_complete_work, Linux 4.18): a signal handler may take that at once. Returns as
 * io_submit(2); EINVAL where the kernel knows no such request. */
static long submit_nothing(long context, struct iocb *b, long never)
{
	long r, event[8];
	struct iocb was = *b;

	b->opcode = IOCB_POLL, b->fd = (uint32_t)never, b->buf = 1 /* POLLIN */;
	r = raw3(NR_io_submit, context, 1, &b);
	b->opcode = was.opcode, b->fd = was.fd, b->buf = was.buf;
	raw1(NR_close, never);
	if (r == 1)
		raw3(NR_io_cancel, context, b, event);
	return r;
}

/* Submits one sync. */
static long submit_sync(long context, struct iocb **block)
{
	struct iocb *b = *block;
	long mode = raw3(NR_fcntl, b->fd, 3 /* F_GETFL */, 0), r, never;
	struct verdict v;
	int fd = (int)b->fd;

	if (is_error(mode) || b->buf || b->offset || b->nbytes || b->rw_flags ||
	    is_error(raw_sync_file_range(fd, 0, 1, 0)))
		return raw3(NR_io_submit, context, 1, block); /* the kernel gives the error */
	never = decided(&v, fd) && !v.error && may_change() && is_regular(fd)
			? raw2(NR_eventfd2, 0, 0x80000)
			: -EBADF_;
	if (!is_error(never)) {
		/* Before anybody can be told. */
		sl_owe(&v);
		sl_note_queued(SL_KIND_LIBAIO, fd, &v, 1);
		r = submit_nothing(context, b, never);
		return r == -EINVAL_ ? raw3(NR_io_submit, context, 1, block) : r;
	}
	if (UNLIKELY(v.kept == LATER && v.error)) {
		sl_count_failed(0);
		return -EBADF_;
	}
	keep(&v, fd);
	return raw3(NR_io_submit, context, 1, block);
}

/* Submits blocks where nothing is put off: writes to stripped descriptors get their flag back. A
 * program that has a filter may be killed at the call that would read the blocks safely, or be
 * forbidden it; there they are read as they are. */
static long submit_marked(long context, long n, struct iocb **blocks)
{
	long i;

	if (sl_marks.here == SL_MARKS_MAYBE && !all_readable(n, blocks))
		return raw3(NR_io_submit, context, n, blocks);
	for (i = 0; i < n; i++)
		if (is_write(blocks[i]))
			blocks[i]->rw_flags |= (uint32_t)sl_mark_flags((int)blocks[i]->fd);
	return raw3(NR_io_submit, context, n, blocks);
}

/* Submits the first of up to BATCH blocks that go together: a sync, or what is none. Sets N to
 * their number, and FAILED where the one behind them is to fail. */
static long submit_some(long context, long *n, struct iocb **blocks, int *failed)
{
	int can = all_readable(*n, blocks);
	long i;

	if (can < 0 && sl_any_stripped())
		return submit_marked(context, *n, blocks);
	if (can <= 0)
		return raw3(NR_io_submit, context, *n, blocks);
	if (is_sync(blocks[0])) {
		*n = 1;
		return submit_sync(context, blocks);
	}
	for (i = 0; i < *n && !is_sync(blocks[i]); i++) {
		*failed = is_write(blocks[i]) && keep_write(blocks[i]);
		if (*failed)
			break;
	}
	*n = i;
	return i ? raw3(NR_io_submit, context, i, blocks) : -EBADF_;
}

/* As io_submit(2): how many were taken, or -errno where not even the first was. */
long sl_io_submit(long context, long n, void **blocks)
{
	long done = 0, r = 0;
	int active = sl_active(), failed = 0;

	if (n <= 0 || !(active || sl_outside_with_marks()))
		return raw3(NR_io_submit, context, n, blocks);
	while (done < n) {
		long batch = n - done < BATCH ? n - done : BATCH;
		struct iocb **some = (struct iocb **)blocks + done;

		r = active ? submit_some(context, &batch, some, &failed)
			   : submit_marked(context, batch, some);
		if (is_error(r))
			break;
		done += r;
		if (r < batch || failed)
			break;
	}
	return done ? done : r;
}

/* libaio's function returns -errno itself and leaves errno alone. */
EXPORT int io_submit(void *context, long n, void **blocks)
{
	return (int)sl_io_submit((long)context, n, blocks);
}

/* POSIX AIO in glibc. The request must complete after what was queued on its descriptor before, or
 * a program that waits for it alone and exits would lose a queued write. glibc works off the queue
 * of a descriptor in order, so a transfer of nothing is queued and waited for; then the block is
 * marked complete, and a second such transfer carries the program's notification. musl orders its
 * threads in another way: there the request stays real. */
struct aiocb {
	int fd, opcode, reqprio;
	volatile void *buf;
	size_t nbytes;
	void *event[64 / sizeof(void *)]; /* struct sigevent */
	void *next;
	int priority, policy, error;
	long result;
	int64_t offset;
	char reserved[40];
};
#define EINPROGRESS_ 115
#define O_SYNC_FLAG  (O_SYNC_BIT_ | O_DSYNC_)

extern int aio_read(struct aiocb *b) __attribute__((weak));
extern int aio_suspend(const struct aiocb *const list[], int n, const void *timeout)
	__attribute__((weak));

/* The notification of a struct sigevent; 1 is SIGEV_NONE. */
static int wants_notice(const struct aiocb *b)
{
	const int *words = (const int *)(const void *)b->event;

	return words[__SIZEOF_POINTER__ == 8 ? 3 : 2] != 1;
}

/* Queues a transfer of nothing behind what is queued on FD, and waits until it is done. */
static void wait_behind(int fd, const struct aiocb *notice)
{
	struct aiocb b = { .fd = fd };
	const struct aiocb *list[1] = { &b };
	unsigned i;

	((int *)(void *)b.event)[__SIZEOF_POINTER__ == 8 ? 3 : 2] = 1;
	for (i = 0; notice && i < sizeof b.event / sizeof b.event[0]; i++)
		b.event[i] = notice->event[i];
	if (aio_read(&b))
		return;
	/* glibc marks the block complete and then reads its notification, both under the lock that
	 * aio_suspend takes: so once more after it is complete, before the block goes out of sight. */
	while (__atomic_load_n(&b.error, __ATOMIC_ACQUIRE) == EINPROGRESS_)
		aio_suspend(list, 1, NULL);
	aio_suspend(list, 1, NULL);
}

/* The same where the thread cannot be cancelled: aio_suspend can be, aio_fsync cannot, and glibc
 * writes to the block when its turn comes. */
static void pass_queue(int fd, const struct aiocb *notice)
{
	int state = 0;

	pthread_setcancelstate(1 /* PTHREAD_CANCEL_DISABLE */, &state);
	wait_behind(fd, notice);
	pthread_setcancelstate(state, NULL);
}

/* Whether this libc's queue is one that we can wait behind. */
static int has_queue(void)
{
	return gnu_get_libc_version && aio_read && aio_suspend && pthread_setcancelstate;
}

/* Notes the debt of what was decided before it was written, which may have taken long. Where it may
 * not be put off any more, nobody settles behind this: it is made for real. Returns 0 or -errno. */
static long owe_behind(int fd)
{
	if (!sl.levels || LIKELY(sl_owe_for(fd)))
		return 0;
	return sl_real(SL_KEPT_NOW, 0, NR_fsync, (const long[6]){ fd });
}

static int aio_later(int op, const struct aiocb *b, struct verdict *v)
{
	long mode;

	if ((op != O_DSYNC_ && op != O_SYNC_FLAG) || !sl_active())
		return 0;
	mode = raw3(NR_fcntl, b->fd, 3 /* F_GETFL */, 0);
	if (is_error(mode) || !(mode & O_ACCMODE_) || is_error(raw_sync_file_range(b->fd, 0, 1, 0)))
		return 0;
	v->kept = LATER, v->error = 0;
	if (sl.levels) {
		sl_count_request(0);
		sl_decide(v, b->fd);
	}
	if (v->kept == LATER && !v->error && !has_queue())
		v->kept = SL_KEPT_AIO;
	if (v->kept != LATER)
		sl_count_kept(v->kept, 0);
	sl_note_queued(SL_KIND_AIO_FSYNC, b->fd, v, v->kept == LATER);
	return v->kept == LATER;
}

static int own_aio_fsync(struct sl_next *next, const char *name, int op, struct aiocb *b,
			 uint64_t caller)
{
	int (*libc)(int, struct aiocb *);
	struct verdict v;
	struct aiocb was;

	if (aio_later(op, b, &v)) {
		if (v.error && !has_queue())
			return (int)sl_set(-v.error);
		__atomic_store_n(&b->error, EINPROGRESS_, __ATOMIC_RELEASE);
		pass_queue(b->fd, NULL);
		if (v.error)
			sl_count_failed(0);
		else
			v.error = (int)-owe_behind(b->fd);
		/* Once it is done it is the program's again, who may poll it. */
		was = *b;
		b->result = v.error ? -1 : 0;
		__atomic_store_n(&b->error, v.error, __ATOMIC_RELEASE);
		if (wants_notice(&was))
			pass_queue(was.fd, &was);
		return 0;
	}
	libc = (int (*)(int, struct aiocb *))sl_next(next, name, caller);
	return libc ? libc(op, b) : (int)sl_set(-ENOSYS_);
}

EXPORT int aio_fsync(int op, struct aiocb *b)
{
	static struct sl_next next;

	return own_aio_fsync(&next, "aio_fsync", op, b, CALLER);
}

EXPORT int aio_fsync64(int op, struct aiocb *b)
{
	static struct sl_next next;

	return own_aio_fsync(&next, "aio_fsync64", op, b, CALLER);
}
