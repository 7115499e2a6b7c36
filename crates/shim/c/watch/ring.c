/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The ring of this process in each session that records: found at its first event.
 *
 * The file with the rings lies beside the page. Only its head and one ring are mapped: a 32-bit
 * program has no room for all. A process that may not open the file any more (it changed its user
 * or its root) asks for it where it asks for the slots.
 */
#include "watch/watch.h"

enum { RING_NONE, RING_CLAIMING, RING_READY };

/* Has the recorder look at the rings now. */
void sl_wake_recorder(struct sl_rings *r)
{
	ADD(r->bell, 1);
	raw3(NR_futex, &r->bell, 1 /* FUTEX_WAKE */, 1);
}

/* Notes that ring K was claimed: the recorder looks at no more than it must. */
static void count_up(struct sl_rings *r, uint32_t k)
{
	uint32_t count;

	while ((count = LOAD(r->count)) <= k)
		CAS(r->count, count, k + 1);
}

/* Whether ring K, which has our number, is ours and not one's in another namespace. */
static int own_ring(struct sl_rings *r, uint32_t k, uint64_t ns)
{
	unsigned spins;

	/* Another thread may be between its two stores. */
	for (spins = 0; spins < 1000 && !LOAD(r->ring[k].pid_ns); spins++)
		raw0(NR_sched_yield);
	return LOAD(r->ring[k].pid_ns) == ns;
}

/* Finds a ring in R: that of an earlier image of this process, or a free one. -1: there is none. */
static long claim(struct sl_rings *r)
{
	uint32_t pid = (uint32_t)raw0(NR_getpid), count = LOAD(r->count), k;
	uint64_t ns = sl_pid_namespace();

	ns = ns ? ns : 1; /* not known */
	for (k = 0; k < count && k < SL_RING_MAX; k++) {
		if (LOAD(r->ring[k].pid) == pid && own_ring(r, k, ns))
			return k;
	}
	for (k = 0; k < SL_RING_MAX; k++) {
		struct sl_ring *t = &r->ring[k];
		int is_free = LOAD(t->pid) == 0;

		if (is_free && CAS(t->pid, 0, pid)) {
			STORE(t->pid_ns, ns);
			count_up(r, k);
			/* Those of processes that are gone may be given back. */
			if (k > SL_RING_MAX / 2)
				sl_wake_recorder(r);
			return k;
		}
		/* Another thread of ours was faster. */
		if (is_free && LOAD(t->pid) == pid)
			return own_ring(r, k, ns) ? (long)k : -1;
	}
	sl_wake_recorder(r);
	return -1;
}

/* Has the kernel put memory behind N bytes at FROM. */
static long populate(void *from, uint64_t n)
{
	return raw3(NR_madvise, from, n, 23 /* MADV_POPULATE_WRITE, Linux 5.14 */);
}

/* The same behind N cells from cell AT on. */
static long populate_cells(const struct ring *r, uint64_t at, uint64_t n)
{
	uint64_t from = at * sizeof(struct sl_cell) & ~(uint64_t)0xfff; /* `first` begins a page */

	if (!n)
		return 0;
	return populate((char *)r->first + from, (at + n) * sizeof(struct sl_cell) - from);
}

/* Has memory put behind the cells up to place TO and some more: to write where there is none would
 * raise a signal. In a ring that was gone round once there is. Returns 0, or -errno. */
long sl_ring_back(struct ring *r, uint64_t to)
{
	uint64_t from = LOAD(r->backed), end = to + SL_BACK_CELLS, at = from & (r->cells - 1);
	uint64_t n, first;
	long e;

	if (end - r->begin >= r->cells)
		end = r->begin + r->cells;
	n = end - from > r->cells ? r->cells : end - from;
	first = n < r->cells - at ? n : r->cells - at;
	e = populate_cells(r, at, first);
	if (!is_error(e))
		e = populate_cells(r, 0, n - first);
	if (!is_error(e))
		STORE(r->backed, end - r->begin >= r->cells ? UINT64_MAX : end);
	return e;
}

static long open_rings(const struct level *l)
{
	long fd = -ENOENT_;

	if (l->rings_path[0])
		/* More than 2 GiB: a 32-bit process has to say that it can have that. */
		fd = raw4(NR_openat, AT_FDCWD_, l->rings_path,
			  O_RDWR_ | O_CLOEXEC_ | O_NOFOLLOW_ | O_LARGEFILE_, 0);
	return is_error(fd) ? sl_ask_fd(l->page, l->owner, 1) : fd;
}

/* Bytes of one ring with its histogram. */
static uint32_t ring_size(uint32_t cells)
{
	return SL_HIST_BYTES + cells * (uint32_t)sizeof(struct sl_cell);
}

/* As above for the histogram and the first cells of a ring that lies at AT in FD; all of it before
 * Linux 5.14. */
static int back_first(struct ring *r, long fd, uint64_t at)
{
	uint64_t size = ring_size(r->cells);
	long e = populate(r->hist, SL_HIST_BYTES);

	if (!is_error(e))
		e = sl_ring_back(r, r->begin + 1);
	if (e != -EINVAL_)
		return !is_error(e);
#if __SIZEOF_LONG__ == 8
	e = raw4(NR_fallocate, fd, 0, (long)at, (long)size);
#else
	e = raw6(NR_fallocate, fd, 0, (long)at, (long)(at >> 32), (long)size, 0);
#endif
	if (!is_error(e))
		STORE(r->backed, UINT64_MAX);
	return !is_error(e);
}

static int map_ring(struct ring *to, long fd, const struct level *l)
{
	struct sl_rings *r = sl_map(fd, SL_RINGS_DATA, 0);
	uint32_t cells;
	long k;

	if (!r)
		return 0;
	/* From the page: what stands in the rings any process of the session can write. */
	cells = l->page->ring_cells;
	if (r->magic != SL_RINGS_MAGIC || r->version != SL_VERSION || cells < 256 ||
	    cells & (cells - 1) || cells > 1u << 24)
		k = -1;
	else
		k = claim(r);
	if (k >= 0) {
		uint32_t size = ring_size(cells);

		to->hist = sl_map(fd, size, SL_RINGS_DATA + (uint64_t)k * size);
		to->first = (struct sl_cell *)(void *)(to->hist + 1);
		to->rings = r;
		to->control = &r->ring[k];
		to->cells = cells;
		to->begin = to->backed = LOAD(to->control->head);
		if (to->hist && back_first(to, fd, SL_RINGS_DATA + (uint64_t)k * size)) {
			STORE(to->control->backed, 1u);
			return 1;
		}
		if (to->hist)
			raw2(NR_munmap, to->hist, size);
	}
	raw2(NR_munmap, r, SL_RINGS_DATA);
	return 0;
}

/* Looks for a ring, at most once a millisecond: one may have become free. Who has to ask for them
 * where nobody answers spends a ninth of its time on that, not more. Two threads that look at once
 * find the same one, and the slower drops its mapping. */
static void find(struct ring *r, const struct level *l)
{
	uint64_t begin = sl_ticks(), tried = LOAD(r->tried), end;
	struct ring found = { .cells = 0 };
	long fd;

	if (tried && begin - tried < LOAD(r->pause))
		return;
	fd = open_rings(l);
	if (is_error(fd) || !map_ring(&found, fd, l)) {
		end = sl_ticks();
		STORE(r->pause, (l->page->lease_span >> 11) + 8 * (end - begin));
		STORE(r->tried, end | 1);
	} else if (CAS(r->state, RING_NONE, RING_CLAIMING)) {
		r->rings = found.rings;
		r->control = found.control;
		r->hist = found.hist;
		r->first = found.first;
		r->cells = found.cells;
		r->begin = found.begin;
		r->backed = found.backed;
		STORE(r->state, RING_READY);
	} else {
		raw2(NR_munmap, found.hist, ring_size(found.cells));
		raw2(NR_munmap, found.rings, SL_RINGS_DATA);
	}
	if (!is_error(fd))
		raw1(NR_close, fd);
}

struct ring *sl_ring_of(unsigned level)
{
	struct ring *r = &sl_watched()->ring[level];
	unsigned spins;

	if (LIKELY(LOAD(r->state) == RING_READY))
		return r;
	if (LOAD(r->state) == RING_NONE)
		find(r, &sl.level[level]);
	/* Another thread is between two stores. */
	for (spins = 0; spins < 1000 && LOAD(r->state) == RING_CLAIMING; spins++)
		raw0(NR_sched_yield);
	return LOAD(r->state) == RING_READY ? r : NULL;
}
