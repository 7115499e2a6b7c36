/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The calls by which a program asks for durability.    answered later   errno       no session
 *   fsync, fdatasync (fd)                              0                untouched   real call
 *   syncfs (fd)                                        0                untouched   real call
 *   sync ()                                            -                untouched   real call
 *   msync (addr, len, MS_SYNC)                         0                untouched   real call
 *   sync_file_range (fd, at, n, flags)                 0                untouched   real call
 *   pwritev2 (…, RWF_DSYNC | RWF_SYNC)                 bytes written    untouched   real call
 *   syscall (any of these and of osync.c's)            as theirs
 *
 * A bad argument fails as in the kernel: we ask it by a call that checks the same and writes
 * nothing (sync_file_range with flags 0, msync with MS_ASYNC, fcntl F_GETFL). Exceptions:
 * docs/LIMITS.md.
 */
#include "shim.h"

#define MS_ASYNC_  1
#define MS_SYNC_   4
#define RWF_DSYNC_ 2
#define RWF_SYNC_  4

/* What the kernel returned, as a libc returns it. */
long sl_set(long r)
{
	if (LIKELY(!is_error(r)))
		return r;
	if (__errno_location)
		*__errno_location() = (int)-r;
	return -1;
}

/* A call that may block for ever (a FIFO's open, a pipe's write): cancellable while it does, as in
 * the libcs, which switch to asynchronous cancellation around it too. */
long sl_cancellable(long nr, long a, long b, long c, long d, long e, long f)
{
	int old = 0;
	long r;

	if (!pthread_setcanceltype)
		return raw(nr, a, b, c, d, e, f);
	pthread_setcanceltype(1 /* PTHREAD_CANCEL_ASYNCHRONOUS */, &old);
	r = raw(nr, a, b, c, d, e, f);
	pthread_setcanceltype(old, &old);
	return r;
}

static const struct subject no_subject = { -1, NULL, 0, 0 };

static struct subject of_fd(int fd)
{
	struct subject s = { fd, NULL, 0, 0 };

	return s;
}

/* Carries out the verdict of a request whose arguments were found good. */
static long answer(const struct verdict *v, int hint, long nr, const long a[6])
{
	if (v->kept != LATER)
		return sl_real(v->kept, hint, nr, a);
	if (UNLIKELY(v->error)) {
		sl_count_failed(hint);
		return -v->error;
	}
	return sl_owe(v);
}

static unsigned done_as(const struct verdict *v)
{
	if (v->kept != LATER)
		return SL_DONE_REAL;
	return v->error ? SL_DONE_NOTHING : SL_DONE_OWED;
}

/* As above, for a request that is recorded. */
static long answer_noted(const struct verdict *v, int hint, long nr, const long a[6],
			 struct note *n)
{
	unsigned done = done_as(v);
	long r;

	if (done == SL_DONE_REAL)
		sl_note_real(n);
	r = answer(v, hint, nr, a);
	sl_note_end(n, v, done, r);
	return r;
}

/* Whether it is worth to look at the arguments: not where no session would put anything off. */
int sl_maybe_later(void)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++)
		if (!LOAD(sl.level[i].page->relax))
			return 0;
	return 1;
}

/* fsync and fdatasync ask what sync_file_range asks; it says ESPIPE where they say EINVAL. */
static ALWAYS_INLINE long check_fsync(int fd)
{
	long r = raw_sync_file_range(fd, 0, 1, 0);

	return r == -ESPIPE_ ? -EINVAL_ : r;
}

/* syncfs takes any descriptor but one opened with O_PATH. */
static long check_syncfs(int fd)
{
	long r = raw3(NR_fcntl, fd, 3 /* F_GETFL */, 0);

	if (is_error(r))
		return r;
	return r & O_PATH_ ? -EBADF_ : 0;
}

static ALWAYS_INLINE long check(long nr, int fd)
{
	return nr == NR_syncfs ? check_syncfs(fd) : check_fsync(fd);
}

/* Decides for a request that was counted already, and records it. */
static NOINLINE long sync_noted(long nr, int fd, unsigned kind, uint64_t caller)
{
	const long a[6] = { fd };
	struct subject s = of_fd(fd);
	struct verdict v;
	struct note n;
	long r = 0;

	sl_note(&n, kind, fd, caller);
	if (sl_maybe_later() && (nr == NR_syncfs || !n.good))
		r = check(nr, fd);
	if (UNLIKELY(is_error(r))) {
		sl_count_failed(0);
		sl_note_end(&n, NULL, SL_DONE_NOTHING, r);
		return r;
	}
	sl_decide(&v, &s);
	return answer_noted(&v, 0, nr, a, &n);
}

/* Decides for a request that was counted already. */
static NOINLINE long sync_counted(long nr, int fd, unsigned kind, uint64_t caller)
{
	const long a[6] = { fd };
	struct subject s = of_fd(fd);
	struct verdict v;
	long r;

	if (UNLIKELY(sl_recording()))
		return sync_noted(nr, fd, kind, caller);
	if (sl_maybe_later() && UNLIKELY(is_error(r = check(nr, fd)))) {
		sl_count_failed(0);
		return r;
	}
	sl_decide(&v, &s);
	return answer(&v, 0, nr, a);
}

static NOINLINE long sync_anywhere(long nr, int fd, unsigned kind, uint64_t caller)
{
	if (!sl_active())
		return raw1(nr, fd);
	if (UNLIKELY(sl.alone))
		return check(nr, fd);
	sl_count_request(0);
	return sync_counted(nr, fd, kind, caller);
}

/* Inlined: the first return behind a system call costs 20 to 50 ns where the kernel has spoilt the
 * prediction of returns (Safe RET on AMD), so the usual case has one. */
static ALWAYS_INLINE long sync_fd(long nr, int fd, unsigned kind, uint64_t caller)
{
	const uint64_t *debt;
	long r;

	if (UNLIKELY(LOAD_RELAXED(sl.ready) != 2 || sl.filtered || sl.levels != 1))
		return sync_anywhere(nr, fd, kind, caller);
	ADD(shard_of(0, NULL)->requests, 1);
	debt = usual_debt(&sl.level[0]);
	if (UNLIKELY(!debt))
		return sync_counted(nr, fd, kind, caller);
	r = check(nr, fd);
	if (UNLIKELY(is_error(r))) {
		sl_count_failed(0);
		return r;
	}
	/* The first one since the last settle rings. */
	return LIKELY(LOAD(*debt)) ? 0 : sync_counted(nr, fd, kind, caller);
}

EXPORT int fsync(int fd)
{
	testcancel();
	return (int)sl_set(sync_fd(NR_fsync, fd, SL_KIND_FSYNC, CALLER));
}

EXPORT int fdatasync(int fd)
{
	testcancel();
	return (int)sl_set(sync_fd(NR_fdatasync, fd, SL_KIND_FDATASYNC, CALLER));
}

EXPORT int syncfs(int fd)
{
	return (int)sl_set(sync_fd(NR_syncfs, fd, SL_KIND_SYNCFS, CALLER));
}

/* The sync that a write to a stripped O_SYNC descriptor asks for, after the write. */
long sl_sync_written(int fd, int data_only, unsigned kind, uint64_t caller)
{
	return sync_fd(data_only ? NR_fdatasync : NR_fsync, fd, kind, caller);
}

static long sync_all(uint64_t caller)
{
	static const long a[6];
	struct verdict v;
	struct note n;

	if (!sl_active())
		return raw0(NR_sync);
	if (sl.alone)
		return 0;
	sl_count_request(0);
	if (!sl_note(&n, SL_KIND_SYNC, -1, caller)) {
		sl_decide(&v, &no_subject);
		answer(&v, 0, NR_sync, a);
		return 0;
	}
	sl_decide(&v, &no_subject);
	answer_noted(&v, 0, NR_sync, a, &n);
	return 0;
}

EXPORT void sync(void) { sync_all(CALLER); }

#define SFR_VALID 7u

/* Carries out a hint that was counted and decided. */
static long do_hint(const struct verdict *v, int fd, int64_t at, int64_t n, unsigned flags)
{
	if (v->kept == LATER)
		return v->error ? -v->error : sl_owe(v);
#if __SIZEOF_LONG__ == 8
	return sl_real(v->kept, 1, NR_sync_file_range, (const long[6]){ fd, at, n, flags });
#else
	return sl_real(v->kept, 1, NR_sync_file_range,
		       (const long[6]){ fd, (long)at, (long)(at >> 32), (long)n, (long)(n >> 32),
					(long)flags });
#endif
}

static long hint(int fd, int64_t at, int64_t n, unsigned flags, uint64_t caller)
{
	struct subject s = of_fd(fd);
	struct verdict v;
	struct note note;
	long r;

	if (!sl_active())
		return raw_sync_file_range(fd, at, n, flags);
	/* Unknown flags are refused before anything is written. */
	r = raw_sync_file_range(fd, at, n, flags & ~SFR_VALID ? flags : 0);
	if (sl.alone || is_error(r))
		return r;
	sl_count_request(1);
	sl_decide(&v, &s);
	if (LIKELY(!sl_note(&note, SL_KIND_RANGE, fd, caller)))
		return do_hint(&v, fd, at, n, flags);
	note.e.flags = flags;
	note.e.has &= (uint16_t)~SL_HAS_BYTES; /* they stay owed */
	sl_note_written(fd, (long)note.e.bytes);
	if (v.kept != LATER)
		sl_note_real(&note);
	r = do_hint(&v, fd, at, n, flags);
	sl_note_end(&note, &v, done_as(&v), r);
	return r;
}

EXPORT int sync_file_range(int fd, int64_t at, int64_t n, unsigned flags)
{
	if (gnu_get_libc_version) /* no cancellation point in musl */
		testcancel();
	return (int)sl_set(hint(fd, at, n, flags, CALLER));
}

/* struct procmap_query of linux/fs.h (Linux 6.11). */
struct map_query {
	uint64_t size, flags, addr, start, end, vma_flags, page_size, offset, inode;
	uint32_t dev_major, dev_minor, name_size, build_id_size;
	uint64_t name, build_id;
};
#define MAP_QUERY_IOCTL 0xc0686611ul
#define MAP_QUERY_MAX   64

/* The file that is mapped at ADDRESS, and where in it that lies. Returns the length of its name, or
 * -errno. */
static long file_at(uint64_t address, char *name, uint32_t size, struct map_query *q)
{
	long maps = raw4(NR_openat, AT_FDCWD_, "/proc/self/maps", O_CLOEXEC_, 0), r;

	if (is_error(maps))
		return maps;
	*q = (struct map_query){ .size = sizeof *q,
				 .addr = address,
				 .name_size = size,
				 .name = (uintptr_t)name };
	r = raw3(NR_ioctl, maps, MAP_QUERY_IOCTL, q);
	raw1(NR_close, maps);
	if (is_error(r))
		return r;
	return q->name_size ? (long)q->name_size - 1 : 0;
}

long sl_file_at(uint64_t address, char *name, uint32_t size, uint64_t *offset)
{
	struct map_query q;
	long r = file_at(address, name, size, &q);

	if (!is_error(r))
		*offset = address - q.start + q.offset;
	return r;
}

/* What one msync owes, range by range. */
struct range {
	struct verdict *v;
	uint64_t from, to;
	int seen; /* a file was in it */
};

/* Decides for the part of the range that lies on one file. Returns LATER or why not. */
static int decide_part(struct range *r, uint32_t major, uint32_t minor, const char *name)
{
	struct subject s = { -1, name, (uint64_t)major << 32 | minor, 1 };

	sl_decide(r->v, &s);
	if (r->v->kept != LATER)
		return r->v->kept;
	r->seen = 1;
	if (!r->v->error)
		sl_owe(r->v);
	return LATER;
}

/* By one call a mapping. Returns LATER, why not, or -errno where the kernel has no such call. */
static long decide_by_query(struct range *r, long maps)
{
	char name[4096];
	uint64_t at = r->from;
	int k, kept;

	for (k = 0; k < MAP_QUERY_MAX && at < r->to; k++) {
		struct map_query q = { .size = sizeof q,
				       .flags = 0x10 /* covering or next */,
				       .addr = at,
				       .name_size = sizeof name,
				       .name = (uintptr_t)name };
		long e = raw3(NR_ioctl, maps, MAP_QUERY_IOCTL, &q);

		if (is_error(e))
			return k || e == LATER ? (long)SL_KEPT_UNKNOWN : e;
		at = q.end;
		if (q.start >= r->to || !q.inode)
			continue;
		if (!q.name_size)
			name[0] = 0;
		kept = decide_part(r, q.dev_major, q.dev_minor, name);
		if (kept != LATER)
			return kept;
	}
	return at < r->to ? (long)SL_KEPT_UNKNOWN : LATER;
}

/* One line of /proc/PID/maps: "start-end perms offset major:minor inode   name". */
struct map_line {
	uint64_t number[8];
	char name[4096];
	uint32_t field, length;
};
enum { MAP_START, MAP_END, MAP_PERMS, MAP_OFFSET, MAP_MAJOR, MAP_MINOR, MAP_INODE, MAP_NAME };

/* Takes one byte of a line. */
static void take_byte(struct map_line *l, char c)
{
	static const char ends[] = "-  " " :  ";
	uint32_t digit = c <= '9' ? (uint32_t)(c - '0') : (uint32_t)(c - 'a' + 10);

	if (l->field == MAP_NAME) {
		if ((c != ' ' || l->length) && l->length < sizeof l->name - 1)
			l->name[l->length++] = c;
	} else if (c == ends[l->field]) {
		l->field++;
	} else {
		l->number[l->field] = l->number[l->field] * (l->field == MAP_INODE ? 10 : 16) + digit;
	}
}

static int decide_line(struct range *r, struct map_line *l)
{
	l->name[l->length] = 0;
	if (l->number[MAP_END] <= r->from || l->number[MAP_START] >= r->to || !l->number[MAP_INODE])
		return LATER;
	return decide_part(r, (uint32_t)l->number[MAP_MAJOR], (uint32_t)l->number[MAP_MINOR], l->name);
}

/* By the text, before Linux 6.11. */
static long decide_by_text(struct range *r, long maps)
{
	struct map_line l = { .field = 0 };
	char buf[4096];
	long n, i;

	while ((n = raw3(NR_read, maps, buf, sizeof buf)) > 0) {
		for (i = 0; i < n; i++) {
			int kept;

			if (buf[i] != '\n') {
				take_byte(&l, buf[i]);
				continue;
			}
			kept = decide_line(r, &l);
			if (kept != LATER || l.number[MAP_START] >= r->to)
				return kept;
			for (l.field = MAP_NAME + 1; l.field;)
				l.number[--l.field] = 0;
			l.length = 0;
		}
	}
	return n ? (long)SL_KEPT_UNKNOWN : LATER;
}

/* Debts of one msync: every file system that the range touches. Returns LATER or why not. */
static int decide_range(struct verdict *v, long maps, uint64_t from, uint64_t to)
{
	struct range r = { v, from, to, 0 };
	long kept = decide_by_query(&r, maps);

	if (is_error(kept) && kept != LATER)
		kept = decide_by_text(&r, maps);
	if (kept == LATER && !r.seen) /* memory only: the kernel has nothing to write either */
		kept = SL_KEPT_UNKNOWN;
	return (int)kept;
}

/* Decides for one msync whose arguments are good. */
static struct verdict decide_memory(const char *addr, size_t len)
{
	struct verdict v = { .kept = SL_KEPT_UNKNOWN };
	long maps = sl_maybe_later() ? raw4(NR_openat, AT_FDCWD_, "/proc/self/maps", O_CLOEXEC_, 0)
				     : -EBADF_;

	if (!is_error(maps)) {
		v.kept = decide_range(&v, maps, (uintptr_t)addr, (uintptr_t)addr + len);
		raw1(NR_close, maps);
	} else if (!sl_maybe_later()) {
		v.kept = SL_KEPT_NOW;
	}
	return v;
}

/* Tells which file the memory at ADDR is. */
static void note_memory(struct note *n, const char *addr)
{
	struct map_query q;
	long r = file_at((uintptr_t)addr, n->text, sizeof n->text, &q);

	if (is_error(r) || !q.inode)
		return;
	n->e.text = (uint16_t)r;
	n->e.has |= SL_HAS_TEXT | SL_HAS_STAT;
	n->stat = (struct sl_stat){ .inode = q.inode,
				    .dev = (uint64_t)q.dev_major << 32 | q.dev_minor };
}

static long sync_memory(char *addr, size_t len, int flags, uint64_t caller)
{
	const long a[6] = { (long)addr, (long)len, flags };
	struct verdict v;
	struct note n;
	long r;

	if (!(flags & MS_SYNC_) || flags & MS_ASYNC_ || !sl_active())
		return raw3(NR_msync, addr, len, flags);
	r = raw3(NR_msync, addr, len, (flags & ~MS_SYNC_) | MS_ASYNC_);
	if (sl.alone)
		return r;
	sl_count_request(0);
	if (sl_note(&n, SL_KIND_MSYNC, -1, caller)) {
		n.e.flags = (uint32_t)flags;
		note_memory(&n, addr);
	}
	if (is_error(r) && sl_maybe_later()) {
		sl_count_failed(0);
		sl_note_end(&n, NULL, SL_DONE_NOTHING, r);
		return r;
	}
	v = decide_memory(addr, len);
	/* What the range owes was noted by decide_range. */
	sl_note_real(&n);
	r = v.kept != LATER ? sl_real(v.kept, 0, NR_msync, a) : -v.error;
	if (v.kept == LATER && v.error)
		sl_count_failed(0);
	sl_note_end(&n, &v, done_as(&v), r);
	return r;
}

EXPORT int msync(void *addr, size_t len, int flags)
{
	testcancel();
	return (int)sl_set(sync_memory(addr, len, flags, CALLER));
}

/* pwritev2 after its arguments: the RWF_ flags that ask for durability become a debt. */
static long write_flagged(int fd, const void *iov, int n, int64_t at, int flags, uint64_t caller)
{
	unsigned kind = flags & RWF_SYNC_ ? SL_KIND_RWF_SYNC : SL_KIND_RWF_DSYNC;
	int asked = flags & (RWF_DSYNC_ | RWF_SYNC_);
	/* What sync_file_range refuses is no file: the flag has no effect there, and is passed on. */
	int counts = asked && sl_active() && !is_error(raw_sync_file_range(fd, 0, 1, 0));
	int later = counts && sl_maybe_later();
	struct verdict now = { .kept = SL_KEPT_NOW };
	struct note note;
	long r, s;

	note.on = 0;
	if (!asked)
		return sl_write_call(fd, 1, NR_pwritev2,
				     (const long[6]){ fd, (long)iov, n, (long)at,
						      __SIZEOF_LONG__ == 8 ? 0 : (long)(at >> 32),
						      flags },
				     caller);
	if (counts && !later && sl_note(&note, kind, fd, caller))
		sl_note_real(&note);
	r = sl_cancellable(NR_pwritev2, fd, (long)iov, n, (long)at,
			   __SIZEOF_LONG__ == 8 ? 0 : (long)(at >> 32),
			   later ? flags & ~asked : flags);
	if (!counts || r <= 0)
		return r;
	if (!later) {
		sl_count_request(0);
		sl_count_kept(SL_KEPT_NOW, 0);
		note.e.bytes += (uint64_t)r;
		note.e.flags = (uint32_t)flags;
		sl_note_end(&note, &now, SL_DONE_REAL, r);
		return r;
	}
	sl_note_written(fd, r);
	s = sl_sync_written(fd, !(asked & RWF_SYNC_), kind, caller);
	return is_error(s) ? s : r;
}

EXPORT long pwritev2(int fd, const void *iov, int n, long at, int flags)
{
	return (long)sl_set(write_flagged(fd, iov, n, at, flags, CALLER));
}

EXPORT long pwritev64v2(int fd, const void *iov, int n, int64_t at, int flags)
{
	return (long)sl_set(write_flagged(fd, iov, n, at, flags, CALLER));
}

/* The calls of this library, by number, for programs that go through syscall(). */
static long covered(long nr, long a, long b, long c, long d, long e, long f, uint64_t caller)
{
	switch (nr) {
	case NR_fsync:
		return sync_fd(nr, (int)a, SL_KIND_FSYNC, caller);
	case NR_fdatasync:
		return sync_fd(nr, (int)a, SL_KIND_FDATASYNC, caller);
	case NR_syncfs:
		return sync_fd(nr, (int)a, SL_KIND_SYNCFS, caller);
	case NR_sync:
		return sync_all(caller);
	case NR_msync:
		return sync_memory((char *)a, (size_t)b, (int)c, caller);
#if __SIZEOF_LONG__ == 8
	case NR_sync_file_range:
		return hint((int)a, b, c, (unsigned)d, caller);
	case NR_pwritev2:
		return write_flagged((int)a, (const void *)b, (int)c, d, (int)f, caller);
#else
	case NR_sync_file_range:
		return hint((int)a, (int64_t)((uint64_t)(uint32_t)c << 32 | (uint32_t)b),
			    (int64_t)((uint64_t)(uint32_t)e << 32 | (uint32_t)d), (unsigned)f, caller);
	case NR_pwritev2:
		return write_flagged((int)a, (const void *)b, (int)c,
				     (int64_t)((uint64_t)(uint32_t)e << 32 | (uint32_t)d), (int)f,
				     caller);
#endif
	default:
		return sl_other_syscall(nr, a, b, c, d, e, f, caller);
	}
}

EXPORT long syscall(long nr, long a, long b, long c, long d, long e, long f)
{
	return sl_set(covered(nr, a, b, c, d, e, f, CALLER));
}
