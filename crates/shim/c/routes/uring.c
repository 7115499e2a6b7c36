/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What liburing submits, where it is a shared library.
 *
 * A write-back error that a decision met is told here, since the kernel would not tell it again: a
 * ring has no way to say which it was, so as EBADF, as of a request on no file.
 */
#include "routes/routes.h"

#define NO_FILE (-1)

/* FSYNC and SYNC_FILE_RANGE entries become NOP before they are handed to the kernel; writes to a
 * stripped descriptor get their flag back. An entry that waits for others (linked behind one, or
 * drained, or submitted while a drained one may still wait) stays real: what it waits for has not
 * been written yet, and a settle in between would miss it. So does one of a registered file,
 * which has no descriptor, and one of a ring that may be allowed fsyncs and no NOPs: restrictions
 * can be put only on a ring that began disabled. */
struct sqe {
	uint8_t opcode, flags;
	uint16_t ioprio;
	int32_t fd;
	uint64_t off, addr;
	uint32_t len, op_flags;
	uint64_t user_data, more, addr3, pad;
};
struct uring {
	unsigned *khead, *ktail, *kmask, *kentries, *kflags, *kdropped, *array;
	struct sqe *sqes;
	unsigned head, tail;
	size_t ring_size;
	void *ring;
	unsigned more[4];
	void *cq_pointers[7];
	size_t cq_size;
	void *cq_ring;
	unsigned cq_more[4];
	unsigned flags;
};
#define SQE_FIXED_FILE 1
#define SQE_DRAIN      2
#define SQE_LINKS      (4 | 8)
#define SETUP_IOPOLL   (1u << 0)
#define SETUP_SQPOLL   (1u << 1)
#define SETUP_DISABLED (1u << 6)
#define SETUP_SQE128   (1u << 10)
#define OP_NOP         0
#define OP_WRITEV      2
#define OP_FSYNC       3
#define OP_WRITE_FIXED 5
#define OP_RANGE       8
#define OP_WRITE       23
#define OP_WRITEV_FIXED 61

/* Whether the kernel would carry E out. What it refuses, and a NOP would not, is left to it. */
static int is_good(const struct sqe *e)
{
	int range = e->opcode == OP_RANGE;
	uint32_t known = range ? 7 : 1 /* IORING_FSYNC_DATASYNC */;
	uint64_t more = e->more & ~0xffff0000ull; /* buf_index, splice_fd_in; no personality */

	if (e->ioprio || e->addr || more || e->op_flags & ~known || (int64_t)e->off < 0)
		return 0;
	return !is_error(raw_sync_file_range(e->fd, range ? (int64_t)e->off : 0,
					     range ? e->len : 1, 0));
}

static int sqe_syncs(const struct sqe *e) { return e->opcode == OP_FSYNC || e->opcode == OP_RANGE; }

/* The writes that can bear a RWF_ flag. */
static int sqe_writes(const struct sqe *e)
{
	return e->opcode == OP_WRITE || e->opcode == OP_WRITEV || e->opcode == OP_WRITE_FIXED ||
	       e->opcode == OP_WRITEV_FIXED;
}

/* A program may prepare an entry once, as the kernel changes none, and write what changes alone.
 * So one that is put off says what it was where the kernel does not look in a NOP: that is undone
 * when it is handed in again. Behind a submission nothing may be touched: another thread may have
 * ended the ring, or filled it again.
 *
 * It says so twice. An FSYNC that is put off has no address; who prepares another entry writes one,
 * and so may who writes all of an FSYNC but its opcode. io_uring_get_sqe of liburing 2.4 clears the
 * pad. */
#define MARK      0x534c5941bd2eull /* the upper 48 bits: of no address that a process can have */
#define WAS_RANGE 8

static int is_marked(uint64_t word) { return word >> 16 == MARK; }

static uint32_t any_put_off;

static void be_put_off(struct sqe *e)
{
	__atomic_store_n(&any_put_off, 1, __ATOMIC_RELAXED);
	e->addr = e->pad = MARK << 16 | e->op_flags | (e->opcode == OP_RANGE ? WAS_RANGE : 0);
	e->op_flags = 0;
	e->opcode = OP_NOP; /* which takes no notice of descriptor, offset, address and length */
}

/* It completes with EBADF. A signal's handler may submit what is being submitted: number AT. */
static void be_refused(struct sqe *e, uint32_t at)
{
	e->addr3 = MARK << 48 | (at & 0xffffull) << 32 | (uint32_t)e->fd;
	e->fd = NO_FILE;
}

static int was_refused(const struct sqe *e)
{
	return sqe_syncs(e) && e->addr3 >> 48 == (MARK & 0xffff);
}

static int is_refused(const struct sqe *e, uint32_t at)
{
	return was_refused(e) && (e->addr3 >> 32 & 0xffff) == (at & 0xffff);
}

/* Undoes either. An entry that is HANDED IN again may have had its flags cleared (io_uring_get_sqe
 * of liburing 2.4), where the stronger request is meant. What a program has made another entry by
 * hand stays that, and what io_uring_prep_nop has made, which names no file. */
static void be_as_before(struct sqe *e, int handed_in)
{
	int addressed = is_marked(e->addr), padded = is_marked(e->pad);
	uint64_t was = addressed ? e->addr : e->pad;

	if (was_refused(e)) {
		if (e->fd == NO_FILE)
			e->fd = (int32_t)(uint32_t)e->addr3;
		e->addr3 = 0;
	}
	if (addressed)
		e->addr = 0;
	if (padded)
		e->pad = 0;
	if (e->opcode != OP_NOP || !(addressed || (padded && e->fd != NO_FILE)))
		return;
	e->opcode = was & WAS_RANGE ? OP_RANGE : OP_FSYNC;
	if (!e->op_flags && (was & WAS_RANGE || !handed_in))
		e->op_flags = was & 7;
}

static void put_off_sqe(struct sqe *e, uint32_t at, int stays)
{
	struct verdict v = { .kept = LATER };
	int hint = e->opcode == OP_RANGE;

	if (stays || e->flags & SQE_FIXED_FILE) /* what it names may not be open yet */
		v.kept = SL_KEPT_AIO;
	else if (!is_good(e))
		return;
	if (sl.levels) {
		sl_count_request(hint);
		if (v.kept == LATER)
			sl_decide(&v, e->fd);
	}
	if (UNLIKELY(v.kept == LATER && v.error)) {
		sl_count_failed(hint);
		be_refused(e, at);
		return;
	}
	sl_note_queued(hint ? SL_KIND_URING_RANGE : SL_KIND_URING,
		       e->flags & SQE_FIXED_FILE ? -1 : e->fd, &v, v.kept == LATER);
	if (v.kept != LATER) {
		sl_count_kept(v.kept, hint);
		return;
	}
	sl_owe(&v);
	be_put_off(e);
}

/* An entry that is still in the ring since it was handed in: the kernel stops behind one that it
 * refuses, or lacks memory. What has been written since then is its request's, too, and what the
 * program has changed in it holds. */
static void put_off_again(struct sqe *e, uint32_t at, int stays)
{
	struct verdict v = { .kept = LATER };

	if (!is_marked(e->addr) && !is_marked(e->pad))
		return;
	be_as_before(e, 0);
	if (!sqe_syncs(e) || !sl.levels || stays || !is_good(e))
		return;
	sl_decide(&v, e->fd);
	if (v.kept == LATER && v.error) {
		be_refused(e, at);
	} else if (v.kept == LATER) {
		sl_owe(&v);
		be_put_off(e);
	}
}

/* A NOP that names a file may be what was put off: the program has written all of it anew but its
 * opcode. It stays a NOP, and what it may ask for is owed, or made at once. */
static void owe_nop(struct sqe *e, uint32_t at, int active)
{
	struct verdict v = { .kept = SL_KEPT_NOW };

	if (e->fd <= 0 || e->flags & SQE_FIXED_FILE)
		return;
	if (is_error(raw_sync_file_range(e->fd, 0, 1, 0)))
		return;
	if (active && sl.levels) {
		v.kept = LATER;
		sl_decide(&v, e->fd);
	}
	if (v.kept == LATER && !v.error) {
		sl_owe(&v);
	} else if (v.kept == LATER || is_error(raw1(NR_fsync, e->fd))) {
		e->opcode = OP_FSYNC; /* the error is told by nobody else */
		be_refused(e, at);
	}
}

/* The kernel's own thread takes what is in the ring of whom it was made by, in whose descriptors
 * it looks. A process that was forked may have another's. */
static int is_polled_for_another(const struct uring *u)
{
	return u->flags & SETUP_SQPOLL && !sl.alone && sl_active() &&
	       (uint32_t)raw0(NR_getpid) != sl.began_as;
}

static struct sqe *sqe_at(const struct uring *u, uint32_t at)
{
	return &u->sqes[(at & *u->kmask) << (u->flags & SETUP_SQE128 ? 1 : 0)];
}

/* For good: when the turn of a drained entry came cannot be seen. */
static uint32_t drained;

static void look_for_drain(const struct sqe *e)
{
	if (e->flags & SQE_DRAIN)
		__atomic_store_n(&drained, 1, __ATOMIC_RELAXED);
}

/* What the kernel has left in the ring, from HEAD on. Returns whether the last of that links what
 * comes behind. */
static int look_at_left(const struct uring *u, uint32_t head, int active)
{
	uint32_t at;
	int linked = 0;

	if (head == u->head || u->head - head > *u->kmask + 1)
		return 0;
	for (at = head; at != u->head; at++) {
		struct sqe *e = sqe_at(u, at);
		int stays = linked || !active || e->flags & SQE_FIXED_FILE;

		look_for_drain(e);
		if (!(u->flags & SETUP_SQPOLL))
			put_off_again(e, at, stays || LOAD_RELAXED(drained));
		linked = (e->flags & SQE_LINKS) != 0;
	}
	return linked;
}

#ifdef SL_GATE
/* Who was in the middle of this when the process was let go of finds that here: the tracer has
 * undone what it had put off until then. */
static void undo_if_let_go(const struct uring *u, uint32_t head)
{
	uint32_t at, n = 0;

	if (!LOAD(sl_marks.let_go))
		return;
	for (at = head; at != u->tail && n <= *u->kmask; at++, n++)
		be_as_before(sqe_at(u, at), 0);
}
#else
static void undo_if_let_go(const struct uring *u, uint32_t head)
{
	(void)u;
	(void)head;
}
#endif

void sl_put_off_ring(void *ring)
{
	const struct uring *u = ring;
	int linked, active = sl_active(), stays;
	uint32_t at, head, n = 0;

	if (!u || !u->kmask || !u->sqes)
		return;
	if (active)
		sl_slot_flag(SL_SLOT_URING);
	head = LOAD(*u->khead);
	linked = look_at_left(u, head, active);
	stays = u->flags & SETUP_DISABLED || is_polled_for_another(u);
	for (at = u->head; at != u->tail && n <= *u->kmask; at++, n++) {
		struct sqe *e = sqe_at(u, at);

		if (!is_refused(e, at))
			be_as_before(e, 1);
		look_for_drain(e);
		if (sqe_syncs(e)) {
			if (active && !(u->flags & SETUP_IOPOLL)) /* it refuses both, and no NOP */
				put_off_sqe(e, at, linked || stays || LOAD_RELAXED(drained));
		} else if (sqe_writes(e) && !(e->flags & SQE_FIXED_FILE)) {
			e->op_flags |= (uint32_t)sl_mark_flags(e->fd);
		} else if (e->opcode == OP_NOP && LOAD_RELAXED(any_put_off)) {
			owe_nop(e, at, active);
		}
		linked = (e->flags & SQE_LINKS) != 0;
	}
	undo_if_let_go(u, head);
}

#define NEXT(name, type)                                                        \
	static struct sl_next found;                                            \
	__typeof__(type) next = (__typeof__(type))sl_next(&found, name, CALLER); \
	if (!next)                                                              \
		return -ENOSYS_;

EXPORT int io_uring_submit(struct uring *u)
{
	NEXT("io_uring_submit", int (*)(struct uring *))
	sl_put_off_ring(u);
	return next(u);
}

EXPORT int io_uring_submit_and_wait(struct uring *u, unsigned n)
{
	NEXT("io_uring_submit_and_wait", int (*)(struct uring *, unsigned))
	sl_put_off_ring(u);
	return next(u, n);
}

EXPORT int io_uring_submit_and_get_events(struct uring *u)
{
	NEXT("io_uring_submit_and_get_events", int (*)(struct uring *))
	sl_put_off_ring(u);
	return next(u);
}

EXPORT int io_uring_submit_and_wait_timeout(struct uring *u, void *cqe, unsigned n, void *ts,
					    void *mask)
{
	NEXT("io_uring_submit_and_wait_timeout",
	     int (*)(struct uring *, void *, unsigned, void *, void *))
	sl_put_off_ring(u);
	return next(u, cqe, n, ts, mask);
}

/* liburing 2.8 */
EXPORT int io_uring_submit_and_wait_min_timeout(struct uring *u, void *cqe, unsigned n, void *ts,
						unsigned min_wait, void *mask)
{
	NEXT("io_uring_submit_and_wait_min_timeout",
	     int (*)(struct uring *, void *, unsigned, void *, unsigned, void *))
	sl_put_off_ring(u);
	return next(u, cqe, n, ts, min_wait, mask);
}

/* liburing 2.9 */
EXPORT int io_uring_submit_and_wait_reg(struct uring *u, void *cqe, unsigned n, int index)
{
	NEXT("io_uring_submit_and_wait_reg", int (*)(struct uring *, void *, unsigned, int))
	sl_put_off_ring(u);
	return next(u, cqe, n, index);
}
