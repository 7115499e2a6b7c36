/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The calls by which a program asks for durability.    answered later   errno       no session
 *   fsync, fdatasync, syncfs (fd)                      0                untouched   real call
 *   sync ()                                            -                untouched   real call
 *
 * A bad argument fails as in the kernel: we ask it by a call that checks the same and writes
 * nothing (sync_file_range with flags 0, fcntl F_GETFL). Exceptions: docs/LIMITS.md.
 */
#include "core/core.h"

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
long sl_answer(const struct verdict *v, long nr, int fd)
{
	if (v->kept != LATER)
		return sl_real_one_in_place(v->kept, nr, fd);
	if (UNLIKELY(v->error)) {
		sl_count_failed(0);
		return -v->error;
	}
	return sl_owe(v);
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

long sl_check_sync(long nr, int fd)
{
	return nr == NR_syncfs ? check_syncfs(fd) : check_fsync(fd);
}

/* Decides for a request that was counted already. */
static NOINLINE long sync_counted(long nr, int fd, unsigned kind, uint64_t caller)
{
	struct verdict v;
	long r;

	if (UNLIKELY(sl_recording()))
		return sl_sync_noted(nr, fd, kind, caller);
	if (sl_maybe_later() && UNLIKELY(is_error(r = sl_check_sync(nr, fd)))) {
		sl_count_failed(0);
		return r;
	}
	sl_decide(&v, fd);
	return sl_answer(&v, nr, fd);
}

static NOINLINE long sync_anywhere(long nr, int fd, unsigned kind, uint64_t caller)
{
	if (!sl_active())
		return raw1(nr, fd);
	if (UNLIKELY(sl.alone))
		return sl_check_sync(nr, fd);
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

NOINLINE long sl_sync_fd(long nr, int fd, unsigned kind, uint64_t caller)
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
	long r = sl_sync_fd(nr, fd, kind, caller);

#ifdef SL_GATE
	if (r == SL_AT_SITE) /* the program has no site for it */
		r = raw1(nr, fd);
#endif
	return r;
}

long sl_sync_all(uint64_t caller)
{
	struct verdict v;

	if (!sl_active())
		return raw0(NR_sync);
	if (sl.alone)
		return 0;
	sl_count_request(0);
	if (UNLIKELY(sl_recording()))
		return sl_sync_noted(NR_sync, -1, SL_KIND_SYNC, caller);
	sl_decide(&v, -1);
	return sl_answer(&v, NR_sync, 0);
}

EXPORT void sync(void) { sl_sync_all(CALLER); }
