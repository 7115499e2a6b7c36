/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What liburing submits, where it is a shared library.
 *
 * A write-back error that a decision met is told here, since the kernel would not tell it again: a
 * ring has no way to say which it was, so as EBADF, as of a request on no file.
 */
#include "shim.h"
#include "gate.h"

#define NO_FILE UINT32_MAX

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

static void put_off_sqe(struct sqe *e, int stays)
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
		e->fd = (int32_t)NO_FILE;
		return;
	}
	sl_note_queued(hint ? SL_KIND_URING_RANGE : SL_KIND_URING,
		       e->flags & SQE_FIXED_FILE ? -1 : e->fd, &v, v.kept == LATER);
	if (v.kept != LATER) {
		sl_count_kept(v.kept, hint);
		return;
	}
	sl_owe(&v);
	e->opcode = OP_NOP;
	e->fd = -1;
	e->off = e->addr = 0;
	e->len = e->op_flags = 0;
}

void sl_put_off_ring(void *ring)
{
	struct uring *u = ring;
	static uint32_t drained; /* for good: when its turn came cannot be seen */
	int linked = 0, active = sl_active();
	unsigned shift, mask, at, n = 0;

	if (!u || !u->kmask || !u->sqes)
		return;
	if (active)
		sl_slot_flag(SL_SLOT_URING);
	shift = u->flags & SETUP_SQE128 ? 1 : 0;
	mask = *u->kmask;
	for (at = u->head; at != u->tail && n <= mask; at++, n++) {
		struct sqe *e = &u->sqes[(at & mask) << shift];

		if (e->flags & SQE_DRAIN)
			__atomic_store_n(&drained, 1, __ATOMIC_RELAXED);
		if (e->opcode == OP_FSYNC || e->opcode == OP_RANGE) {
			if (active && !(u->flags & SETUP_IOPOLL)) /* it refuses both, and no NOP */
				put_off_sqe(e, linked || LOAD_RELAXED(drained) ||
						       u->flags & SETUP_DISABLED);
		} else if (sqe_writes(e) && !(e->flags & SQE_FIXED_FILE)) {
			e->op_flags |= (uint32_t)sl_mark_flags(e->fd);
		}
		linked = (e->flags & SQE_LINKS) != 0;
	}
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
