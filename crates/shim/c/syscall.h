/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The machine layer: raw system calls, their numbers, the lease clock's counter and a cheap number
 * for the running thread, for x86-64, i386 and aarch64. Nothing here knows what synclater does.
 *
 * raw() returns what the kernel returns: a value, or -errno. It never touches errno.
 */
#ifndef SYNCLATER_SYSCALL_H
#define SYNCLATER_SYSCALL_H

#include <stddef.h>
#include <stdint.h>

#define ERRNO_MAX 4095
static inline int is_error(long r) { return (unsigned long)r > (unsigned long)-(ERRNO_MAX + 1); }

#if defined(__x86_64__)
#define SL_ARCH "x86_64"
enum {
	NR_gettid = 186,
	NR_fstatfs = 138,
	NR_sched_yield = 24,
	NR_read = 0,
	NR_write = 1,
	NR_open = 2,
	NR_close = 3,
	NR_pread64 = 17,
	NR_readv = 19,
	NR_getcwd = 79,
	NR_rename = 82,
	NR_renameat = 264,
	NR_preadv = 295,
	NR_renameat2 = 316,
	NR_preadv2 = 327,
	NR_fstat = 5,
	NR_mmap = 9,
	NR_munmap = 11,
	NR_rt_sigreturn = 15,
	NR_ioctl = 16,
	NR_pwrite64 = 18,
	NR_writev = 20,
	NR_msync = 26,
	NR_madvise = 28,
	NR_tgkill = 234,
	NR_getpid = 39,
	NR_sendfile = 40,
	NR_socket = 41,
	NR_connect = 42,
	NR_recvmsg = 47,
	NR_setsockopt = 54,
	NR_getsockopt = 55,
	NR_fcntl = 72,
	NR_fsync = 74,
	NR_fdatasync = 75,
	NR_readlink = 89,
	NR_geteuid = 107,
	NR_rt_sigqueueinfo = 129,
	NR_prctl = 157,
	NR_chroot = 161,
	NR_sync = 162,
	NR_umount2 = 166,
	NR_futex = 202,
	NR_io_submit = 209,
	NR_io_cancel = 210,
	NR_unshare = 272,
	NR_eventfd2 = 290,
	NR_clock_gettime = 228,
	NR_openat = 257,
	NR_readlinkat = 267,
	NR_splice = 275,
	NR_process_vm_readv = 310,
	NR_kill = 62,
	NR_sync_file_range = 277,
	NR_dup3 = 292,
	NR_pwritev = 296,
	NR_open_by_handle_at = 304,
	NR_syncfs = 306,
	NR_seccomp = 317,
	NR_copy_file_range = 326,
	NR_pwritev2 = 328,
	NR_statx = 332,
	NR_fallocate = 285,
	NR_io_uring_setup = 425,
	NR_io_uring_enter = 426,
	NR_openat2 = 437,
};

/* Clears the last two: a call that the program makes by itself may find its arguments there, and
 * would pass the session's filter with a cookie of ours (sl_cookie). */
static inline long raw(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long r;

	__asm__ volatile("syscall\n\t"
			 "xor %%r8d, %%r8d\n\t"
			 "xor %%r9d, %%r9d"
			 : "=a"(r), "+r"(r8), "+r"(r9)
			 : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return r;
}

static inline uint64_t counter_ticks(void)
{
	uint32_t lo, hi;

	__asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
	return (uint64_t)hi << 32 | lo;
}

static inline uintptr_t thread_number(void)
{
	uintptr_t p;

	__asm__("mov %%fs:0, %0" : "=r"(p));
	return p;
}

#elif defined(__i386__)
#define SL_ARCH "i386"
enum {
	NR_gettid = 224,
	NR_fstatfs = 100,
	NR_sched_yield = 158,
	NR_read = 3,
	NR_write = 4,
	NR_open = 5,
	NR_close = 6,
	NR_rename = 38,
	NR_readv = 145,
	NR_pread64 = 180,
	NR_getcwd = 183,
	NR_renameat = 302,
	NR_preadv = 333,
	NR_renameat2 = 353,
	NR_preadv2 = 378,
	NR_fstat = 197,
	NR_mmap = 192,
	NR_munmap = 91,
	NR_rt_sigreturn = 173,
	NR_ioctl = 54,
	NR_pwrite64 = 181,
	NR_writev = 146,
	NR_msync = 144,
	NR_madvise = 219,
	NR_tgkill = 270,
	NR_getpid = 20,
	NR_sendfile = 187,
	NR_sendfile64 = 239,
	NR_socket = 359,
	NR_connect = 362,
	NR_recvmsg = 372,
	NR_getsockopt = 365,
	NR_setsockopt = 366,
	NR_fcntl = 221,
	NR_fcntl32 = 55,
	NR_fsync = 118,
	NR_fdatasync = 148,
	NR_readlink = 85,
	NR_geteuid = 201,
	NR_rt_sigqueueinfo = 178,
	NR_prctl = 172,
	NR_chroot = 61,
	NR_sync = 36,
	NR_umount2 = 52,
	NR_umount = 22,
	NR_futex = 240,
	NR_io_submit = 248,
	NR_io_cancel = 249,
	NR_unshare = 310,
	NR_eventfd2 = 328,
	NR_clock_gettime = 403,
	NR_openat = 295,
	NR_readlinkat = 305,
	NR_splice = 313,
	NR_process_vm_readv = 347,
	NR_kill = 37,
	NR_sync_file_range = 314,
	NR_dup3 = 330,
	NR_pwritev = 334,
	NR_open_by_handle_at = 342,
	NR_syncfs = 344,
	NR_seccomp = 354,
	NR_copy_file_range = 377,
	NR_pwritev2 = 379,
	NR_statx = 383,
	NR_fallocate = 324,
	NR_io_uring_setup = 425,
	NR_io_uring_enter = 426,
	NR_openat2 = 437,
};

/* Through the vDSO's entry, which both libcs keep at %gs:16: int $0x80 costs 25 times as much here.
 * noipa and the memory operand: gcc otherwise splits the argument block and runs out of registers.
 */
struct sl_args {
	long nr, a, b, c, d, e, f;
};
#ifdef SL_GATE
/* In a program that has no thread pointer yet, too. */
#define SL_ENTER "int $0x80\n\t"
#define SL_CFI(note) ""
#else
#define SL_CFI(note) note
#define SL_ENTER "call *%%gs:16\n\t"
#endif
__attribute__((noipa, noinline, unused)) static long raw_args(const struct sl_args *s)
{
	long r;

	/* The notes for the unwinder: a cancelled thread unwinds through here. */
	__asm__ volatile("push %%ebp\n\t"
			 SL_CFI(".cfi_adjust_cfa_offset 4\n\t")
			 SL_CFI(".cfi_rel_offset ebp, 0\n\t")
			 "push %%ebx\n\t"
			 SL_CFI(".cfi_adjust_cfa_offset 4\n\t")
			 SL_CFI(".cfi_rel_offset ebx, 0\n\t")
			 "mov %%eax, %%ebp\n\t"
			 "mov 4(%%ebp), %%ebx\n\t"
			 "mov 8(%%ebp), %%ecx\n\t"
			 "mov 12(%%ebp), %%edx\n\t"
			 "mov 16(%%ebp), %%esi\n\t"
			 "mov 20(%%ebp), %%edi\n\t"
			 "mov 0(%%ebp), %%eax\n\t"
			 "mov 24(%%ebp), %%ebp\n\t"
			 SL_ENTER
			 "pop %%ebx\n\t"
			 SL_CFI(".cfi_adjust_cfa_offset -4\n\t")
			 SL_CFI(".cfi_restore ebx\n\t")
			 "pop %%ebp\n\t"
			 SL_CFI(".cfi_adjust_cfa_offset -4\n\t")
			 SL_CFI(".cfi_restore ebp")
			 : "=a"(r)
			 : "0"(s)
			 : "ecx", "edx", "esi", "edi", "memory");
	return r;
}

static inline long raw(long nr, long a, long b, long c, long d, long e, long f)
{
	struct sl_args s = { nr, a, b, c, d, e, f };

	return raw_args(&s);
}

static inline uint64_t counter_ticks(void)
{
	uint32_t lo, hi;

	__asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
	return (uint64_t)hi << 32 | lo;
}

static inline uintptr_t thread_number(void)
{
	uintptr_t p;

	__asm__("mov %%gs:0, %0" : "=r"(p));
	return p;
}

#elif defined(__aarch64__)
#define SL_ARCH "aarch64"
/* No open, readlink, rename: the *at calls with AT_FDCWD serve. */
enum {
	NR_gettid = 178,
	NR_fstatfs = 44,
	NR_sched_yield = 124,
	NR_read = 63,
	NR_write = 64,
	NR_close = 57,
	NR_getcwd = 17,
	NR_renameat = 38,
	NR_readv = 65,
	NR_pread64 = 67,
	NR_preadv = 69,
	NR_renameat2 = 276,
	NR_preadv2 = 286,
	NR_fstat = 80,
	NR_mmap = 222,
	NR_munmap = 215,
	NR_rt_sigreturn = 139,
	NR_ioctl = 29,
	NR_pwrite64 = 68,
	NR_writev = 66,
	NR_msync = 227,
	NR_madvise = 233,
	NR_tgkill = 131,
	NR_getpid = 172,
	NR_sendfile = 71,
	NR_socket = 198,
	NR_connect = 203,
	NR_recvmsg = 212,
	NR_setsockopt = 208,
	NR_getsockopt = 209,
	NR_fcntl = 25,
	NR_fsync = 82,
	NR_fdatasync = 83,
	NR_geteuid = 175,
	NR_rt_sigqueueinfo = 138,
	NR_prctl = 167,
	NR_chroot = 51,
	NR_sync = 81,
	NR_umount2 = 39,
	NR_futex = 98,
	NR_io_submit = 2,
	NR_io_cancel = 3,
	NR_unshare = 97,
	NR_eventfd2 = 19,
	NR_clock_gettime = 113,
	NR_openat = 56,
	NR_readlinkat = 78,
	NR_splice = 76,
	NR_process_vm_readv = 270,
	NR_kill = 129,
	NR_sync_file_range = 84,
	NR_dup3 = 24,
	NR_pwritev = 70,
	NR_open_by_handle_at = 265,
	NR_syncfs = 267,
	NR_seccomp = 277,
	NR_copy_file_range = 285,
	NR_pwritev2 = 287,
	NR_statx = 291,
	NR_fallocate = 47,
	NR_io_uring_setup = 425,
	NR_io_uring_enter = 426,
	NR_openat2 = 437,
};

/* Clears the last two, as on x86-64. */
static inline long raw(long nr, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0\n\t"
			 "mov x4, xzr\n\t"
			 "mov x5, xzr"
			 : "+r"(x0), "+r"(x4), "+r"(x5)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3)
			 : "memory");
	return x0;
}

static inline uint64_t counter_ticks(void)
{
	uint64_t t;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
	return t;
}

static inline uintptr_t thread_number(void)
{
	uintptr_t p;

	__asm__("mrs %0, tpidr_el0" : "=r"(p));
	return p;
}

#else
#error "synclater's shim has no system-call layer for this machine"
#endif

#define raw0(n)                raw(n, 0, 0, 0, 0, 0, 0)
#define raw1(n, a)             raw(n, (long)(a), 0, 0, 0, 0, 0)
#define raw2(n, a, b)          raw(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define raw3(n, a, b, c)       raw(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define raw4(n, a, b, c, d)    raw(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define raw5(n, a, b, c, d, e) raw(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define raw6(n, a, b, c, d, e, f) \
	raw(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

#if __SIZEOF_LONG__ == 8
/* A 64-bit offset takes one argument place here, and two, low half first, on i386. */
#define OFF64(o) (long)(o)
static inline long raw_sync_file_range(int fd, int64_t at, int64_t n, unsigned flags)
{
	return raw4(NR_sync_file_range, fd, at, n, flags);
}
#else
static inline long raw_sync_file_range(int fd, int64_t at, int64_t n, unsigned flags)
{
	return raw6(NR_sync_file_range, fd, (uint32_t)at, (uint32_t)(at >> 32), (uint32_t)n,
		    (uint32_t)(n >> 32), flags);
}
#endif

#endif
