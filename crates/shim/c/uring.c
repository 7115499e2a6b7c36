/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What liburing submits, where it is a shared library.
 *
 * A write-back error that a decision met is told here, since the kernel would not tell it again: a
 * ring has no way to say which it was, so as EBADF, as of a request on no file.
 */
#include "shim.h"
#include "gate.h"

#define NO_FILE (-1)
#define PLACES  32  /* rings of which something may be put off at a time */
#define DEEP    256 /* entries of a submission that may be */

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
	uint64_t user_data, rest[3];
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
	uint64_t more = e->rest[0] & ~0xffff0000ull; /* buf_index, splice_fd_in; no personality */

	if (e->ioprio || e->addr || more || e->op_flags & ~known || (int64_t)e->off < 0)
		return 0;
	return !is_error(raw_sync_file_range(e->fd, range ? (int64_t)e->off : 0,
					     range ? e->len : 1, 0));
}

/* The writes that can bear a RWF_ flag. */
static int sqe_writes(const struct sqe *e)
{
	return e->opcode == OP_WRITE || e->opcode == OP_WRITEV || e->opcode == OP_WRITE_FIXED ||
	       e->opcode == OP_WRITEV_FIXED;
}

/* What was made of an entry. */
struct record {
	int32_t fd;   /* its descriptor */
	uint32_t was; /* 0 of one that is as the program wrote it; else its flags, and which of these */
};
#define WAS_FSYNC   0x100
#define WAS_RANGE   0x200
#define WAS_REFUSED 0x400

/* The rings of which something was put off, by their entries (a program may move the rest), and
 * what they were handed last, from FROM on. All of that is as it was at the next submission. Behind
 * this one nothing may be touched: another thread may have ended the ring, or filled it again. */
static void *rings[PLACES];
static struct handed {
	unsigned from, to;
	struct record of[DEEP];
} handed[PLACES];

static struct handed *place_of(const struct uring *u)
{
	unsigned first = (uintptr_t)u->sqes / 4096, n;

	for (n = 0; n < PLACES; n++)
		if (LOAD(rings[(first + n) % PLACES]) == u->sqes)
			return &handed[(first + n) % PLACES];
	return NULL;
}

static void empty(struct handed *p)
{
	unsigned i;

	for (i = 0; i < DEEP; i++)
		p->of[i].was = 0;
	p->from = p->to = 0;
}

/* NULL where there is none: its requests stay real. */
static struct handed *new_place(const struct uring *u, unsigned head)
{
	unsigned first = (uintptr_t)u->sqes / 4096, n;

	for (n = 0; n < PLACES; n++) {
		unsigned i = (first + n) % PLACES;
		void *none = NULL;

		if (!__atomic_compare_exchange_n(&rings[i], &none, (void *)u->sqes, 0,
						 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
			continue;
		empty(&handed[i]);
		handed[i].from = head;
		return &handed[i];
	}
	return NULL;
}

static struct record *record_of(struct handed *p, unsigned at)
{
	return p && at - p->from < DEEP ? &p->of[at - p->from] : NULL;
}

static void be_put_off(struct sqe *e, struct record *r)
{
	r->fd = e->fd;
	r->was = e->op_flags | (e->opcode == OP_RANGE ? WAS_RANGE : WAS_FSYNC);
	e->op_flags = 0;
	e->opcode = OP_NOP; /* which takes no notice of descriptor, offset, address and length */
}

/* It completes with EBADF. */
static void be_refused(struct sqe *e, struct record *r)
{
	if (r) {
		r->fd = e->fd;
		r->was = WAS_REFUSED;
	}
	e->fd = NO_FILE;
}

/* Whether an entry that is handed in again as a NOP is the request that it was. A NOP of the
 * program's own names no file, or 0, or has flags of its own. */
static int is_still(const struct sqe *e, const struct record *r)
{
	int flagged = e->op_flags && !(r->was & WAS_RANGE && e->op_flags <= 7);

	return e->fd == r->fd || (e->fd > 0 ? !flagged : !e->fd && sl_active() && is_good(e));
}

/* Undoes either: a program may prepare an entry once, since the kernel changes none, and write what
 * changes alone. One that it HANDS IN again may have had its flags cleared (io_uring_get_sqe of
 * liburing 2.4), where the stronger request is meant. */
static void be_as_before(struct sqe *e, struct record *r, int handed_in)
{
	uint32_t was = r->was;

	if (was & WAS_REFUSED) {
		if (e->fd == NO_FILE)
			e->fd = r->fd;
	} else if (e->opcode == OP_NOP && (!handed_in || is_still(e, r))) {
		e->opcode = was & WAS_RANGE ? OP_RANGE : OP_FSYNC;
		if (!e->op_flags && (was & WAS_RANGE || !handed_in))
			e->op_flags = was & 7;
	}
	r->was = 0;
}

/* R is where to note what becomes of it. */
static void put_off_sqe(struct sqe *e, struct record *r, int stays)
{
	struct subject s = { e->fd, NULL, 0, 0 };
	struct verdict v = { .kept = LATER };
	int hint = e->opcode == OP_RANGE;

	if (stays || e->flags & SQE_FIXED_FILE) /* what it names may not be open yet */
		v.kept = SL_KEPT_AIO;
	else if (!is_good(e))
		return;
	if (sl.levels) {
		sl_count_request(hint);
		if (v.kept == LATER)
			sl_decide(&v, &s);
	}
	if (UNLIKELY(v.kept == LATER && v.error)) {
		sl_count_failed(hint);
		be_refused(e, r);
		return;
	}
	if (v.kept == LATER && !r)
		v.kept = SL_KEPT_AIO;
	sl_note_queued(hint ? SL_KIND_URING_RANGE : SL_KIND_URING,
		       e->flags & SQE_FIXED_FILE ? -1 : e->fd, &v, v.kept == LATER);
	if (v.kept != LATER) {
		sl_count_kept(v.kept, hint);
		return;
	}
	sl_owe(&v);
	be_put_off(e, r);
}

/* An entry that the kernel left in the ring when it took others (it stops behind one that it
 * refuses, or lacks memory): what has been written since then is its request's, too. */
static void put_off_again(struct sqe *e, struct record *r, int active)
{
	struct subject s = { e->fd, NULL, 0, 0 };
	struct verdict v = { .kept = LATER };

	if (!r->was || r->was & WAS_REFUSED)
		return;
	if (e->opcode != OP_NOP) { /* the program has made another of it meanwhile */
		r->was = 0;
		return;
	}
	if (!active || !sl.levels) {
		be_as_before(e, r, 0);
		return;
	}
	sl_decide(&v, &s);
	if (v.kept == LATER && !v.error) {
		sl_owe(&v);
	} else if (v.error || is_error(raw1(NR_fsync, e->fd))) {
		be_as_before(e, r, 0);
		be_refused(e, r);
	}
}

/* The kernel's own thread takes what is in the ring of whom it was made by, in whose descriptors
 * it looks. A process that was forked may have another's. */
static int is_polled_for_another(const struct uring *u)
{
	return u->flags & SETUP_SQPOLL && !sl.alone && sl_active() &&
	       (uint32_t)raw0(NR_getpid) != sl.began_as;
}

static struct sqe *sqe_at(const struct uring *u, unsigned at)
{
	return &u->sqes[(at & *u->kmask) << (u->flags & SETUP_SQE128 ? 1 : 0)];
}

/* What was handed in last is as it was, as far as the kernel has taken it: before HEAD. P begins
 * with what it has not taken then. */
static void give_back(struct uring *u, struct handed *p, unsigned head, int active)
{
	unsigned at, size = *u->kmask + 1;

	/* One function of liburing's may call another: nobody has taken any of it yet. */
	if (p->to == u->tail && p->to != u->head && p->from == head)
		return;
	/* Else it is a ring that lies where another one was. */
	if (p->to != u->head || p->to - p->from > size || head - p->from > p->to - p->from)
		empty(p);
	for (at = p->from; at != p->to && at - p->from < DEEP; at++) {
		struct record *r = record_of(p, at);

		if (!r->was)
			continue;
		if ((int)(head - at) > 0)
			be_as_before(sqe_at(u, at), r, at + size - u->head < u->tail - u->head);
		else if (!(u->flags & SETUP_SQPOLL))
			put_off_again(sqe_at(u, at), r, active);
	}
	for (at = head; at != u->head && at - p->from < DEEP; at++) {
		struct record left = *record_of(p, at);

		record_of(p, at)->was = 0;
		p->of[at - head] = left;
	}
	p->from = head;
}

void sl_put_off_ring(void *ring)
{
	struct uring *u = ring;
	static uint32_t drained; /* for good: when its turn came cannot be seen */
	int linked = 0, active = sl_active(), stays;
	unsigned head, at, n = 0;
	struct handed *p;

	if (!u || !u->kmask || !u->sqes)
		return;
	if (active)
		sl_slot_flag(SL_SLOT_URING);
	head = LOAD(*u->khead);
	p = place_of(u);
	if (p)
		give_back(u, p, head, active);
	stays = u->flags & SETUP_DISABLED || is_polled_for_another(u);
	for (at = u->head; at != u->tail && n <= *u->kmask; at++, n++) {
		struct sqe *e = sqe_at(u, at);

		if (e->flags & SQE_DRAIN)
			__atomic_store_n(&drained, 1, __ATOMIC_RELAXED);
		if (e->opcode == OP_FSYNC || e->opcode == OP_RANGE) {
			if (active && !(u->flags & SETUP_IOPOLL)) { /* it refuses both, and no NOP */
				if (!p)
					p = new_place(u, head);
				put_off_sqe(e, record_of(p, at),
					    linked || stays || LOAD_RELAXED(drained));
			}
		} else if (sqe_writes(e) && !(e->flags & SQE_FIXED_FILE)) {
			e->op_flags |= (uint32_t)sl_mark_flags(e->fd);
		}
		linked = (e->flags & SQE_LINKS) != 0;
	}
	if (p)
		p->to = u->tail;
}

#define NEXT(name, type)                                                        \
	static struct sl_next found;                                            \
	__typeof__(type) next = (__typeof__(type))sl_next(&found, name, CALLER); \
	if (!next)                                                              \
		return -ENOSYS_;

/* Its place is another ring's. */
EXPORT void io_uring_queue_exit(struct uring *u)
{
	static struct sl_next found;
	void (*next)(struct uring *) =
		(void (*)(struct uring *))sl_next(&found, "io_uring_queue_exit", CALLER);
	struct handed *p = u ? place_of(u) : NULL;

	if (p)
		__atomic_store_n(&rings[p - handed], NULL, __ATOMIC_RELEASE);
	if (next)
		next(u);
}

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
