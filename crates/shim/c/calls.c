/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The calls by which a program asks for durability.    answered later   errno       no session
 *   fsync, fdatasync (fd)                              0                untouched   real call
 *   syncfs (fd)                                        0                untouched   real call
 *   sync ()                                            -                untouched   real call
 *   msync (addr, len, MS_SYNC), in memory.c            0                untouched   real call
 *   sync_file_range (fd, at, n, flags)                 0                untouched   real call
 *   pwritev2 (…, RWF_DSYNC | RWF_SYNC)                 bytes written    untouched   real call
 *   syscall (any of these and of osync.c's)            as theirs
 *
 * A bad argument fails as in the kernel: we ask it by a call that checks the same and writes
 * nothing (sync_file_range with flags 0, msync with MS_ASYNC, fcntl F_GETFL). Exceptions:
 * docs/LIMITS.md.
 */
#include "shim.h"

#define RWF_DSYNC_ 2
#define RWF_SYNC_  4

/* Tells an error of the kernel's as a libc does. */
long sl_fail(long r)
{
	if (__errno_location)
		*__errno_location() = (int)-r;
	return -1;
}

/* As the libcs do where there are other threads: asynchronous cancellation while it blocks. */
long sl_cancellable_by_others(long nr, long a, long b, long c, long d, long e, long f)
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

/* Carries out the verdict of a request whose arguments were found good. */
static long answer(const struct verdict *v, long nr, int fd)
{
	if (v->kept != LATER)
		return sl_real_one_in_place(v->kept, nr, fd);
	if (UNLIKELY(v->error)) {
		sl_count_failed(0);
		return -v->error;
	}
	return sl_owe(v);
}

unsigned sl_done_as(const struct verdict *v)
{
	if (v->kept != LATER)
		return SL_DONE_REAL;
	return v->error ? SL_DONE_NOTHING : SL_DONE_OWED;
}

/* As above, for a request that is recorded. */
static long answer_noted(const struct verdict *v, long nr, int fd, struct note *n)
{
	unsigned done = sl_done_as(v);
	long r;

	if (done == SL_DONE_REAL) {
		sl_note_real(n);
		r = sl_real_one(v->kept, nr, fd);
	} else {
		r = answer(v, nr, fd);
	}
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
	struct verdict v;
	struct note *n = NOTE(kind, fd, caller);
	long r = 0;

	if (sl_maybe_later() && (nr == NR_syncfs || !n || !n->good))
		r = check(nr, fd);
	if (UNLIKELY(is_error(r))) {
		sl_count_failed(0);
		sl_note_end(n, NULL, SL_DONE_NOTHING, r);
		return r;
	}
	sl_decide(&v, fd);
	return answer_noted(&v, nr, fd, n);
}

/* Decides for a request that was counted already. */
static NOINLINE long sync_counted(long nr, int fd, unsigned kind, uint64_t caller)
{
	struct verdict v;
	long r;

	if (UNLIKELY(sl_recording()))
		return sync_noted(nr, fd, kind, caller);
	if (sl_maybe_later() && UNLIKELY(is_error(r = check(nr, fd)))) {
		sl_count_failed(0);
		return r;
	}
	sl_decide(&v, fd);
	return answer(&v, nr, fd);
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

/* The first sync of a file that is usual else: one question to the kernel checks the arguments and
 * tells of errors from before. */
static NOINLINE long sync_fresh(long nr, int fd, unsigned kind, uint64_t caller,
				const uint64_t *debt, uint64_t fresh)
{
	const struct level *l = &sl.level[0];
	long r = nr == NR_syncfs ? -EBADF_ : sl_ask_errors(fd);

	if (UNLIKELY(is_error(r))) {
		if (r == -EBADF_ || r == -ESPIPE_ || r == -EINVAL_)
			return sync_counted(nr, fd, kind, caller);
		/* It is told once. */
		sl_remember(fd, fresh);
		sl_count_failed(0);
		return r;
	}
	sl_remember(fd, fresh);
	if (UNLIKELY(!LOAD(*debt)))
		return sync_counted(nr, fd, kind, caller);
	sl_count_fs(l, (uint32_t)((debt - l->slots->debt[0]) / SL_CLASS_MAX));
	return 0;
}

/* What the usual case leaves over: one that was not even counted (NOT_COUNTED), or the first sync
 * of a file (FRESH is not 0), or what sl_decide has to tell (0). */
#define NOT_COUNTED UINT64_MAX

static long sync_rest(long nr, int fd, unsigned kind, uint64_t caller, const uint64_t *debt,
		      uint64_t fresh)
{
	if (fresh == NOT_COUNTED)
		return sync_anywhere(nr, fd, kind, caller);
	return fresh ? sync_fresh(nr, fd, kind, caller, debt, fresh)
		     : sync_counted(nr, fd, kind, caller);
}

/* The same, returned as a libc does. */
static NOINLINE int sync_rest_set(long nr, int fd, unsigned kind, uint64_t caller,
				  const uint64_t *debt, uint64_t fresh)
{
	return (int)sl_set(sync_rest(nr, fd, kind, caller, debt, fresh));
}

/* Whether a sync is the usual case, and answered. Inlined: the first return behind a system call
 * costs 20 to 50 ns where the kernel has spoilt the prediction of returns (Safe RET on AMD), so the
 * usual case has one. X is written to. */
static ALWAYS_INLINE int is_usual(int fd, const uint64_t **debt, uint64_t *fresh,
				  struct statx_answer *x)
{
	*debt = NULL, *fresh = NOT_COUNTED;
	if (UNLIKELY(LOAD_RELAXED(sl.ready) != 2 || sl_is_outside() || sl.levels != 1))
		return 0;
	ADD(shard_of(0, NULL)->requests, 1);
	*debt = usual_debt(&sl.level[0], fd, fresh, x);
	if (UNLIKELY(!*debt))
		*fresh = 0;
	/* The first one since the last settle rings. */
	return LIKELY(*debt && !*fresh) && LOAD(**debt);
}

static NOINLINE long sync_fd(long nr, int fd, unsigned kind, uint64_t caller)
{
	const uint64_t *debt;
	struct statx_answer *x;
	uint64_t fresh;
	int usual;

	if (!sl_active())
		return raw1(nr, fd);
	x = sl_take_answer();
	usual = is_usual(fd, &debt, &fresh, x);
	sl_leave_answer(x);
	return usual ? 0 : sync_rest(nr, fd, kind, caller, debt, fresh);
}

#ifdef __i386__
#define IN_A_FRAME NOINLINE /* no call there can take the place of its caller's frame */
#else
#define IN_A_FRAME ALWAYS_INLINE
#endif

/* The same with an answer on the stack, which is free again when the rest is called. */
static IN_A_FRAME int is_usual_here(int fd, const uint64_t **debt, uint64_t *fresh)
{
	struct statx_answer x;

	return is_usual(fd, debt, fresh, &x);
}

#define SYNC_FD(nr, fd, kind)                                              \
	__extension__({                                                    \
		const uint64_t *debt_;                                     \
		uint64_t fresh_;                                           \
		if (LIKELY(is_usual_here(fd, &debt_, &fresh_)))            \
			return 0;                                          \
		return sync_rest_set(nr, fd, kind, CALLER, debt_, fresh_); \
	})

EXPORT int fsync(int fd)
{
	testcancel();
	SYNC_FD(NR_fsync, fd, SL_KIND_FSYNC);
}

EXPORT int fdatasync(int fd)
{
	testcancel();
	SYNC_FD(NR_fdatasync, fd, SL_KIND_FDATASYNC);
}

EXPORT int syncfs(int fd) { SYNC_FD(NR_syncfs, fd, SL_KIND_SYNCFS); }

/* The sync that a write to a stripped O_SYNC descriptor asks for, after the write. */
long sl_sync_written(int fd, int data_only, unsigned kind, uint64_t caller)
{
	long nr = data_only ? NR_fdatasync : NR_fsync;
	long r = sync_fd(nr, fd, kind, caller);

#ifdef SL_GATE
	if (r == SL_AT_SITE) /* the program has no site for it */
		r = raw1(nr, fd);
#endif
	return r;
}

static long sync_all(uint64_t caller)
{
	struct verdict v;
	struct note *n;

	if (!sl_active())
		return raw0(NR_sync);
	if (sl.alone)
		return 0;
	sl_count_request(0);
	n = NOTE(SL_KIND_SYNC, -1, caller);
	sl_decide(&v, -1);
	return n ? answer_noted(&v, NR_sync, 0, n) : answer(&v, NR_sync, 0);
}

EXPORT void sync(void) { sync_all(CALLER); }

#define SFR_VALID 7u

typedef long make_real(int why, int hint, long nr, const long args[6]);

/* Carries out a hint that was counted and decided; REAL makes it where it is real. */
static long do_hint(const struct verdict *v, int fd, int64_t at, int64_t n, unsigned flags,
		    make_real *real)
{
	if (v->kept == LATER)
		return v->error ? -v->error : sl_owe(v);
#if __SIZEOF_LONG__ == 8
	return real(v->kept, 1, NR_sync_file_range, (const long[6]){ fd, at, n, flags });
#else
	return real(v->kept, 1, NR_sync_file_range,
		    (const long[6]){ fd, (long)at, (long)(at >> 32), (long)n, (long)(n >> 32),
					(long)flags });
#endif
}

static long hint(int fd, int64_t at, int64_t n, unsigned flags, uint64_t caller)
{
	struct verdict v;
	struct note *note;
	long r;

	if (!sl_active())
		return raw_sync_file_range(fd, at, n, flags);
	/* Unknown flags are refused before anything is written. */
	r = raw_sync_file_range(fd, at, n, flags & ~SFR_VALID ? flags : 0);
	if (sl.alone || is_error(r))
		return r;
	sl_count_request(1);
	sl_decide(&v, fd);
	note = NOTE(SL_KIND_RANGE, fd, caller);
	if (LIKELY(!note))
		return do_hint(&v, fd, at, n, flags, sl_real_in_place);
	note->e.flags = flags;
	note->e.has &= (uint16_t)~SL_HAS_BYTES; /* they stay owed */
	sl_note_written(fd, (long)note->e.bytes);
	if (v.kept != LATER)
		sl_note_real(note);
	r = do_hint(&v, fd, at, n, flags, sl_real);
	sl_note_end(note, &v, sl_done_as(&v), r);
	return r;
}

EXPORT int sync_file_range(int fd, int64_t at, int64_t n, unsigned flags)
{
	if (gnu_get_libc_version) /* no cancellation point in musl */
		testcancel();
	return (int)sl_set(hint(fd, at, n, flags, CALLER));
}

/* pwritev2 after its arguments: the RWF_ flags that ask for durability become a debt. */
static long write_flagged(int fd, const void *iov, int n, int64_t at, int flags, uint64_t caller)
{
	unsigned kind = flags & RWF_SYNC_ ? SL_KIND_RWF_SYNC : SL_KIND_RWF_DSYNC;
	/* What lost its O_SYNC asks for that as well. */
	int asks = flags & (RWF_DSYNC_ | RWF_SYNC_), mark = asks ? sl_mark_flags(fd) : 0;
	int asked = asks | mark;
	/* What sync_file_range refuses is no file: the flag has no effect there, and is passed on. */
	int counts = asked && sl_active() && !is_error(raw_sync_file_range(fd, 0, 1, 0));
	/* First, for this file: some files that sync_file_range takes refuse the flag (proc(5)). */
	int kept = counts && sl_maybe_later() ? sl_owes_unseen(fd) : (int)SL_KEPT_NOW;
	int later = counts && kept == LATER;
	struct verdict now = { .kept = kept };
	struct note *note = NULL;
	long r, s;

	if (!asked)
		return sl_write_call(fd, 1, NR_pwritev2,
				     (const long[6]){ fd, (long)iov, n, (long)at,
						      __SIZEOF_LONG__ == 8 ? 0 : (long)(at >> 32),
						      flags },
				     caller);
	if (counts && !later)
		note = NOTE(kind, fd, caller);
	sl_note_real(note);
	r = sl_cancellable(NR_pwritev2, fd, (long)iov, n, (long)at,
			   __SIZEOF_LONG__ == 8 ? sl_cookie() : (long)(at >> 32),
			   later ? flags & ~asked : flags | mark);
	if (!counts || r <= 0) {
		sl_note_drop(note);
		return r;
	}
	if (!later) {
		sl_count_request(0);
		sl_count_kept(kept, 0);
		if (note) {
			note->e.bytes += (uint64_t)r;
			note->e.flags = (uint32_t)flags;
		}
		sl_note_end(note, &now, SL_DONE_REAL, r);
		return r;
	}
	sl_note_written(fd, r);
	s = sl_sync_written(fd, !(asked & RWF_SYNC_), kind, caller);
	/* It was good when it was written to: the number is nobody's, or a pipe's, by now. */
	return is_error(s) && s != -EBADF_ && s != -EINVAL_ ? s : r;
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
long sl_covered(long nr, long a, long b, long c, long d, long e, long f, uint64_t caller)
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
		return sl_sync_memory((char *)a, (size_t)b, (int)c, caller);
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
	return sl_set(sl_covered(nr, a, b, c, d, e, f, CALLER));
}
