/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Every call of the library by its number, for programs that go through syscall(), and for the
 * gate.
 */
#include "routes/routes.h"

#ifdef __aarch64__
#define OPEN_CASES
#else
#define OPEN_CASES    \
	case NR_open: \
		return TIMED_OPEN(AT_FDCWD_, (const char *)a, (int)b, caller, \
				  sl_open_at(AT_FDCWD_, (const char *)a, (int)b, (unsigned)c));
#endif
#ifdef __i386__
#define FCNTL_CASES      \
	case NR_fcntl32: \
	case NR_fcntl:
#else
#define FCNTL_CASES case NR_fcntl:
#endif

#ifdef NR_umount
#define UMOUNT_CASES    \
	case NR_umount: \
		return sl_umount(nr, (const char *)a, 0);
#else
#define UMOUNT_CASES
#endif

/* Passes a call on, or to the wrapper that it has. */
static NOINLINE long other_call(long nr, long a, long b, long c, long d, long e, long f,
				uint64_t caller)
{
	switch (nr) {
		OPEN_CASES
	case NR_openat:
		return TIMED_OPEN((int)a, (const char *)b, (int)c, caller,
				  sl_open_at((int)a, (const char *)b, (int)c, (unsigned)d));
	case NR_openat2:
		return TIMED_OPEN((int)a, NULL, 0, caller,
				  sl_open_how((int)a, (const char *)b, (const void *)c, (size_t)d));
	case NR_open_by_handle_at:
		return TIMED_OPEN((int)a, NULL, (int)c, caller,
				  sl_open_handle((int)a, (void *)b, (int)c));
		FCNTL_CASES
		return sl_file_control(nr, (int)a, (int)b, c);
	case NR_write:
	case NR_writev:
	case NR_pwrite64:
	case NR_pwritev:
	case NR_sendfile:
#ifdef __i386__
	case NR_sendfile64:
#endif
		return sl_write_call((int)a, 0, nr, (const long[6]){ a, b, c, d, e, f }, caller);
	case NR_splice:
	case NR_copy_file_range:
		return sl_write_call((int)c, 0, nr, (const long[6]){ a, b, c, d, e, f }, caller);
	case NR_umount2:
		return sl_umount(nr, (const char *)a, b);
		UMOUNT_CASES
	case NR_io_submit:
		return sl_io_submit(a, b, (void **)c);
	case NR_io_uring_setup:
		if (sl_active())
			sl_slot_flag(SL_SLOT_URING);
		return raw(nr, a, b, c, d, e, f);
	case NR_prctl:
	case NR_seccomp:
		return sl_may_restrict(nr, (const long[6]){ a, b, c, d, e, f });
	default:
#ifdef SL_IO
		return sl_io_syscall(nr, a, b, c, d, e, f, caller);
#else
		return raw(nr, a, b, c, d, e, f);
#endif
	}
}

/* The calls of this library, by number. */
long sl_covered(long nr, long a, long b, long c, long d, long e, long f, uint64_t caller)
{
	switch (nr) {
	case NR_fsync:
		return sl_sync_fd(nr, (int)a, SL_KIND_FSYNC, caller);
	case NR_fdatasync:
		return sl_sync_fd(nr, (int)a, SL_KIND_FDATASYNC, caller);
	case NR_syncfs:
		return sl_sync_fd(nr, (int)a, SL_KIND_SYNCFS, caller);
	case NR_sync:
		return sl_sync_all(caller);
	case NR_msync:
		return sl_sync_memory((char *)a, (size_t)b, (int)c, caller);
#if __SIZEOF_LONG__ == 8
	case NR_sync_file_range:
		return sl_hint((int)a, b, c, (unsigned)d, caller);
	case NR_pwritev2:
		return sl_write_flagged((int)a, (const void *)b, (int)c, d, (int)f, caller);
#else
	case NR_sync_file_range:
		return sl_hint((int)a, (int64_t)((uint64_t)(uint32_t)c << 32 | (uint32_t)b),
			    (int64_t)((uint64_t)(uint32_t)e << 32 | (uint32_t)d), (unsigned)f, caller);
	case NR_pwritev2:
		return sl_write_flagged((int)a, (const void *)b, (int)c,
				     (int64_t)((uint64_t)(uint32_t)e << 32 | (uint32_t)d), (int)f,
				     caller);
#endif
	default:
		return other_call(nr, a, b, c, d, e, f, caller);
	}
}

EXPORT long syscall(long nr, long a, long b, long c, long d, long e, long f)
{
	return sl_set(sl_covered(nr, a, b, c, d, e, f, CALLER));
}
