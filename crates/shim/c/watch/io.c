/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Calls that are no sync requests, timed: reads, writes, opens, renames, closes. Only in
 * libsynclater-io.so, for sessions that ask for it (sl_page.slow).
 *
 * Promise: each call is made as the libc makes it, once, and answers what the kernel answered. What
 * took as long as the session's threshold becomes an event, the rest is counted in a histogram.
 *
 * Only files count: regular ones, folders, block devices. A read of a socket, a pipe or a terminal
 * waits for people. What a descriptor is, statx tells (0.3 us); it is believed for a millisecond,
 * or until a close or an open of that number that we see. So a count can be wrong for a millisecond
 * after a close that we do not see (fclose, dup2); before an event the descriptor is looked at
 * again. A close is looked at before; what it was called is the name that it was opened by.
 *
 * Nothing here asks a disk or a server by itself: names are looked up with RESOLVE_CACHED, which
 * fails where the kernel would have to ask.
 */
#ifndef SL_IO
#define SL_IO 1 /* for a checker that takes this file by itself */
#endif
#include "watch/watch.h"
#include <stdarg.h>

#define RTLD_NEXT_       ((void *)-1l)
#define EINTR_           4
#define ENXIO_           6
#define RESOLVE_CACHED_  0x20
#define SHOWN_MAX        1024 /* of a name */

extern void __chk_fail(void) __attribute__((weak));

/* musl's own, which also cancels what aio has queued on the descriptor. */
static int (*next_close)(int fd);

__attribute__((constructor)) static void find_close(void)
{
	if (!gnu_get_libc_version && dlsym)
		next_close = (int (*)(int))dlsym(RTLD_NEXT_, "close");
}

/* Whether the session at LEVEL wants to know. */
int sl_io_at(unsigned level)
{
	const struct sl_page *p = sl.level[level].page;

	return LOAD_RELAXED(p->slow) && LOAD_RELAXED(p->record);
}

/* Ticks, or 0 where no session wants to know. */
uint64_t sl_io_start(void)
{
	unsigned i;

	if (!sl_active())
		return 0;
	for (i = 0; i < sl.levels; i++)
		if (sl_io_at(i))
			return sl_ticks() | 1;
	return 0;
}

static ALWAYS_INLINE struct io_fd *entry_of(int fd)
{
	return fd >= 0 && fd < FDS_MAX ? &sl_watched()->io[fd] : NULL;
}

static ALWAYS_INLINE int is_fresh(const struct io_fd *d, uint64_t now)
{
	uint64_t checked = LOAD_RELAXED(d->checked);

	return checked && now - checked < sl_millisecond();
}

/* As above, for a call on FD; 0 as well where that is known to be no file. */
uint64_t sl_io_start_on(int fd)
{
	uint64_t start = sl_io_start();
	const struct io_fd *d;

	if (!start)
		return 0;
	d = entry_of(fd);
	return d && is_fresh(d, start) && !LOAD_RELAXED(d->file) ? 0 : start;
}

/* Looks at what FD is, and notes it in D. Returns whether it is a file. */
static NOINLINE int look(int fd, struct io_fd *d, uint64_t now)
{
	struct sl_stat stat = { .mode = 0 };
	uint32_t hash = 0, type;

	if (is_error(sl_what_is(fd, &stat, &hash)))
		stat.mode = 0;
	type = stat.mode & S_IFMT_;
	d->stat = stat;
	d->hash = hash;
	d->file = type == S_IFREG_ || type == S_IFDIR_ || type == S_IFBLK_ || type == S_IFLNK_;
	STORE(d->looked, now);
	STORE(d->checked, now);
	return (int)d->file;
}

static ALWAYS_INLINE int is_file(int fd, struct io_fd *d, uint64_t now)
{
	return LIKELY(is_fresh(d, now)) ? (int)LOAD_RELAXED(d->file) : look(fd, d, now);
}

static uint64_t took_since(uint64_t start, uint64_t now)
{
	/* A clock that is no counter can be set back. */
	return now - start > UINT64_MAX / 2 ? 0 : now - start;
}

/* Counts a call that was faster than a session's threshold. */
static void count_at(unsigned level, const struct ring *r, unsigned kind, uint64_t took)
{
	uint64_t ns = took * LOAD_RELAXED(sl.level[level].page->scale) >> 20;
	unsigned place = ns ? 64 - (unsigned)__builtin_clzll(ns) : 0;

	if (place >= SL_HIST_PLACES)
		place = SL_HIST_PLACES - 1;
	__atomic_fetch_add(&r->hist->shard[shard_number()].count[kind - SL_KIND_READ][place], 1,
			   __ATOMIC_RELAXED);
}

/* Counts a call wherever it was fast. Returns whether it was slow somewhere. */
static int count(unsigned kind, uint64_t took)
{
	int slow = 0;
	unsigned i;

	sl_tell();
	for (i = 0; i < sl.levels; i++) {
		const struct ring *r;
		struct sl_slot *s;

		if (!sl_io_at(i))
			continue;
		r = sl_ring_of(i);
		if (took < LOAD_RELAXED(sl.level[i].page->slow)) {
			if (r)
				count_at(i, r, kind, took);
		} else if (r) {
			slow = 1;
		} else {
			shard_of(i, &s);
			ADD(s->lost, 1);
		}
	}
	return slow;
}

/* Takes what one kind of call was counted at one place. */
static uint64_t take_count(struct sl_hist *h, unsigned kind, unsigned place)
{
	uint64_t sum = 0;
	unsigned k;

	for (k = 0; k < SL_SHARDS; k++) {
		uint32_t *count = &h->shard[k].count[kind][place];

		if (LOAD_RELAXED(*count))
			sum += __atomic_exchange_n(count, 0, __ATOMIC_RELAXED);
	}
	return sum;
}

/* This process is another program now than it was: what that one has counted goes into the ring, so
 * that it is read under its name. What finds no room stays, and is counted for this one. */
void sl_io_hand_over(void)
{
	unsigned i, kind, place;

	for (i = 0; i < sl.levels; i++) {
		struct ring *r = sl_io_at(i) ? sl_ring_of(i) : NULL;

		for (kind = 0; r && kind < SL_HIST_KINDS; kind++) {
			for (place = 0; place < SL_HIST_PLACES; place++) {
				uint64_t n = take_count(r->hist, kind, place);

				if (n && !sl_note_count(r, SL_KIND_READ + kind, place, n))
					__atomic_fetch_add(&r->hist->shard[0].count[kind][place],
							   (uint32_t)n, __ATOMIC_RELAXED);
			}
		}
	}
}

/* --- Names of what was slow ------------------------------------------------------------------- */

/* Appends TEXT at *AT of the note's text, as far as there is room. */
static void append(struct note *n, uint32_t *at, const char *text)
{
	while (*text && *at < SHOWN_MAX)
		n->text[(*at)++] = *text++;
}

/* NAME below DIR as an absolute path, without a look at what is there. */
static void give_absolute(struct note *n, int dir, const char *name)
{
	uint32_t at = 0;
	char link[32];
	long r = 0;

	if (name[0] != '/') {
		if (dir == AT_FDCWD_) {
			r = raw2(NR_getcwd, n->text, SHOWN_MAX);
			r -= !is_error(r); /* the NUL */
		} else if (dir >= 0) {
			sl_fd_link(dir, link);
			r = raw4(NR_readlinkat, AT_FDCWD_, link, n->text, SHOWN_MAX);
		}
		if (r <= 0)
			return;
		at = (uint32_t)r;
		if (n->text[at - 1] != '/')
			append(n, &at, "/");
	}
	append(n, &at, name);
	n->e.text = (uint16_t)at;
	n->e.has |= SL_HAS_TEXT;
}

/* Looks NAME below DIR up, where the kernel can without asking anybody: its path, and what it is.
 * Returns 0, or -errno. */
static long look_up(struct note *n, int dir, const char *name, int flags)
{
	const uint64_t how[3] = { (uint64_t)(O_PATH_ | O_CLOEXEC_ | flags), 0, RESOLVE_CACHED_ };
	long fd = raw4(NR_openat2, dir, name, how, sizeof how), r;
	char link[32];

	if (is_error(fd))
		return fd;
	r = sl_what_is((int)fd, &n->stat, &n->hash);
	if (!is_error(r)) {
		sl_fd_link((int)fd, link);
		r = raw4(NR_readlinkat, AT_FDCWD_, link, n->text, sizeof n->text);
		n->e.text = is_error(r) ? 0 : (uint16_t)r;
		r = is_error(r) ? r : 0;
	}
	raw1(NR_close, fd);
	return r;
}

/* Begins the note of a slow call. */
static void begin(struct note *n, unsigned kind, int fd, uint64_t start, uint64_t took, long r)
{
	n->e = (struct sl_event){ .kind = (uint8_t)kind, .fd = fd, .start = start, .took = took };
	n->e.result = r > INT32_MAX ? INT32_MAX : (int32_t)r;
	n->hash = 0;
}

static void give_stat(struct note *n, const struct io_fd *d)
{
	n->stat = d->stat;
	n->hash = d->hash;
	n->e.has |= SL_HAS_STAT;
}

/* --- Calls on descriptors --------------------------------------------------------------------- */

static NOINLINE void slow_transfer(unsigned kind, int fd, uint64_t start, uint64_t took, long r,
				   uint64_t caller)
{
	struct io_fd own = { .checked = 0 }, *d = entry_of(fd);
	struct note *n;

	d = d ? d : &own;
	if (!look(fd, d, start + took))
		return;
	n = ROOM(sizeof *n);
	begin(n, kind, fd, start, took, r);
	give_stat(n, d);
	sl_note_slow(n, caller);
}

/* A call on FD that began at START (0: nobody wants to know) has come back with R. */
void sl_io_end(unsigned kind, int fd, uint64_t start, long r, uint64_t caller)
{
	struct io_fd own, *d = entry_of(fd);
	uint64_t now, took;

	if (!start)
		return;
	now = sl_ticks();
	took = took_since(start, now);
	if (!d)
		own.checked = 0, d = &own;
	if (is_file(fd, d, now) && UNLIKELY(count(kind, took)))
		slow_transfer(kind, fd, start, took, r, caller);
}

static long transfer(int fd, int blocks, long nr, const long a[6], uint64_t caller)
{
	uint64_t start = sl_io_start_on(fd);
	long r = blocks ? sl_cancellable(nr, a[0], a[1], a[2], a[3], a[4], a[5])
			: raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);

	sl_io_end(SL_KIND_READ, fd, start, r, caller);
	return r;
}

/* --- Opens ------------------------------------------------------------------------------------ */

/* Notes the name that a descriptor was opened by: its close may be slow. One that is long, or
 * relative to a folder, or no name of the file, is not kept. */
static void remember(struct io_fd *d, int dir, const char *path, int flags)
{
	unsigned i;

	d->named = 0;
	if (!path || flags & O_TMPFILE_BIT_ || (path[0] != '/' && dir != AT_FDCWD_))
		return;
	for (i = 0; path[i]; i++) {
		if (i == IO_NAME_MAX - 1)
			return;
		d->name[i] = path[i];
	}
	d->name[i] = 0;
	d->named = d->hash;
}

static NOINLINE void slow_open(uint64_t start, uint64_t took, long fd, const struct io_fd *d,
			       int dir, const char *path, int flags, uint64_t caller)
{
	struct note *n = ROOM(sizeof *n);

	begin(n, SL_KIND_OPEN, is_error(fd) ? -1 : (int)fd, start, took, is_error(fd) ? fd : 0);
	n->e.flags = (uint32_t)flags;
	if (!is_error(fd))
		give_stat(n, d);
	else if (path && fd != -EFAULT_)
		give_absolute(n, dir, path);
	sl_note_slow(n, caller);
}

/* An open that began at START (0: nobody wants to know) has come back with FD. */
void sl_io_opened(uint64_t start, long fd, int dir, const char *path, int flags, uint64_t caller)
{
	struct io_fd own, *d;
	uint64_t now, took;

	if (!start)
		return;
	now = sl_ticks();
	took = took_since(start, now);
	d = is_error(fd) ? NULL : entry_of((int)fd);
	d = d ? d : &own;
	if (is_error(fd)) {
		/* A FIFO that nobody reads, or that was waited for: no file. */
		if (fd == -EINTR_ || fd == -ENXIO_)
			return;
	} else {
		if (!look((int)fd, d, now))
			return;
		remember(d, dir, path, flags);
	}
	if (UNLIKELY(count(SL_KIND_OPEN, took)))
		slow_open(start, took, fd, d, dir, path, flags, caller);
}

/* --- Closes ----------------------------------------------------------------------------------- */

static NOINLINE void slow_close(int fd, const struct io_fd *d, int known, uint64_t start,
				uint64_t took, long r, uint64_t caller)
{
	struct note *n = ROOM(sizeof *n);

	begin(n, SL_KIND_CLOSE, fd, start, took, r);
	n->e.has = SL_HAS_NO_FILE;
	if (known) {
		n->e.has = 0;
		/* The name as it is now, if it is the same file; else as it was given. */
		if (d->named && d->named == d->hash) {
			if (!is_error(look_up(n, AT_FDCWD_, d->name, 0)) && n->hash == d->hash)
				n->e.has |= SL_HAS_TEXT;
			else if (d->name[0] == '/')
				give_absolute(n, AT_FDCWD_, d->name);
			else
				n->e.text = 0;
		}
		give_stat(n, d);
	}
	sl_note_slow(n, caller);
}

static long make_close(int fd, int blocks)
{
	int r;

	if (!blocks)
		return raw1(NR_close, fd);
	if (!next_close)
		return sl_cancellable(NR_close, fd, 0, 0, 0, 0, 0);
	r = next_close(fd);
	return r < 0 && __errno_location ? -(long)*__errno_location() : r;
}

static long close_file(int fd, int blocks, uint64_t caller)
{
	uint64_t start = sl_io_start(), looked, took;
	struct io_fd own = { .checked = 0 }, *d;
	long r;

	if (!start)
		return make_close(fd, blocks);
	d = entry_of(fd);
	d = d ? d : &own;
	if (!is_file(fd, d, start))
		start = 0;
	looked = LOAD(d->looked);
	/* Before the close: behind it the number may be another thread's already. */
	STORE(d->checked, 0);
	if (!start)
		return make_close(fd, blocks);
	start = sl_ticks() | 1;
	r = make_close(fd, blocks);
	took = took_since(start, sl_ticks());
	if (UNLIKELY(count(SL_KIND_CLOSE, took)))
		slow_close(fd, d, LOAD(d->looked) == looked, start, took, r, caller);
	return r;
}

/* --- Renames ---------------------------------------------------------------------------------- */

static NOINLINE void slow_rename(uint64_t start, uint64_t took, long r, int dir, const char *path,
				 unsigned flags, uint64_t caller)
{
	struct note *n = ROOM(sizeof *n);

	begin(n, SL_KIND_RENAME, -1, start, took, r);
	n->e.flags = flags;
	if (!is_error(r) && !is_error(look_up(n, dir, path, O_NOFOLLOW_)))
		n->e.has |= SL_HAS_TEXT | SL_HAS_STAT;
	else if (r != -EFAULT_)
		give_absolute(n, dir, path);
	sl_note_slow(n, caller);
}

/* The call NR with arguments A; DIR and PATH are the new name. */
static long rename_to(long nr, const long a[6], int dir, const char *path, unsigned flags,
		      uint64_t caller)
{
	uint64_t start = sl_io_start(), took;
	long r = raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);

	if (!start)
		return r;
	took = took_since(start, sl_ticks());
	if (UNLIKELY(count(SL_KIND_RENAME, took)))
		slow_rename(start, took, r, dir, path, flags, caller);
	return r;
}

/* --- What programs call ----------------------------------------------------------------------- */

#define READ(fd, nr, ...) \
	sl_set(transfer(fd, 1, nr, (const long[6]){ __VA_ARGS__ }, CALLER))

#if __SIZEOF_LONG__ == 8
#define AT(at) at, 0
#else
#define AT(at) (long)(at), (long)((int64_t)(at) >> 32)
#endif

EXPORT long read(int fd, void *buf, size_t n)
{
	return READ(fd, NR_read, fd, (long)buf, (long)n);
}

EXPORT long readv(int fd, const void *iov, int n)
{
	return READ(fd, NR_readv, fd, (long)iov, n);
}

EXPORT long pread(int fd, void *buf, size_t n, long at)
{
	return READ(fd, NR_pread64, fd, (long)buf, (long)n, AT(at));
}

EXPORT long pread64(int fd, void *buf, size_t n, int64_t at)
{
	return READ(fd, NR_pread64, fd, (long)buf, (long)n, AT(at));
}

EXPORT long preadv(int fd, const void *iov, int n, long at)
{
	return READ(fd, NR_preadv, fd, (long)iov, n, AT(at));
}

EXPORT long preadv64(int fd, const void *iov, int n, int64_t at)
{
	return READ(fd, NR_preadv, fd, (long)iov, n, AT(at));
}

EXPORT long preadv2(int fd, const void *iov, int n, long at, int flags)
{
	return READ(fd, NR_preadv2, fd, (long)iov, n, AT(at), flags);
}

EXPORT long preadv64v2(int fd, const void *iov, int n, int64_t at, int flags)
{
	return READ(fd, NR_preadv2, fd, (long)iov, n, AT(at), flags);
}

/* What a fortified build calls where it knows how much room there is. */
static void check_room(size_t n, size_t room)
{
	if (LIKELY(n <= room))
		return;
	if (__chk_fail)
		__chk_fail();
	raw2(NR_kill, raw0(NR_getpid), 6 /* SIGABRT */);
}

EXPORT long __read_chk(int fd, void *buf, size_t n, size_t room)
{
	check_room(n, room);
	return READ(fd, NR_read, fd, (long)buf, (long)n);
}

EXPORT long __pread_chk(int fd, void *buf, size_t n, long at, size_t room)
{
	check_room(n, room);
	return READ(fd, NR_pread64, fd, (long)buf, (long)n, AT(at));
}

EXPORT long __pread64_chk(int fd, void *buf, size_t n, int64_t at, size_t room)
{
	check_room(n, room);
	return READ(fd, NR_pread64, fd, (long)buf, (long)n, AT(at));
}

EXPORT int close(int fd) { return (int)sl_set(close_file(fd, 1, CALLER)); }

EXPORT int rename(const char *from, const char *to)
{
#ifdef __aarch64__
	const long a[6] = { AT_FDCWD_, (long)from, AT_FDCWD_, (long)to };
	const long nr = NR_renameat;
#else
	const long a[6] = { (long)from, (long)to };
	const long nr = NR_rename;
#endif

	return (int)sl_set(rename_to(nr, a, AT_FDCWD_, to, 0, CALLER));
}

EXPORT int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	const long a[6] = { from_dir, (long)from, to_dir, (long)to };

	return (int)sl_set(rename_to(NR_renameat, a, to_dir, to, 0, CALLER));
}

EXPORT int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	const long a[6] = { from_dir, (long)from, to_dir, (long)to, flags };

	return (int)sl_set(rename_to(NR_renameat2, a, to_dir, to, flags, CALLER));
}

long sl_io_syscall(long nr, long a, long b, long c, long d, long e, long f, uint64_t caller)
{
	const long all[6] = { a, b, c, d, e, f };

	switch (nr) {
	case NR_read:
	case NR_readv:
	case NR_pread64:
	case NR_preadv:
	case NR_preadv2:
		return transfer((int)a, 0, nr, all, caller);
	case NR_close:
		return close_file((int)a, 0, caller);
#ifndef __aarch64__
	case NR_rename:
		return rename_to(nr, all, AT_FDCWD_, (const char *)b, 0, caller);
#endif
	case NR_renameat:
		return rename_to(nr, all, (int)c, (const char *)d, 0, caller);
	case NR_renameat2:
		return rename_to(nr, all, (int)c, (const char *)d, (unsigned)e, caller);
	default:
		return raw(nr, a, b, c, d, e, f);
	}
}
