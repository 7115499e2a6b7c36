/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The machine layer: raw system calls, the lease clock's counter and a cheap number
 * for the running thread, for x86-64, i386 and aarch64. Nothing here knows what synclater does.
 *
 * raw() returns what the kernel returns: a value, or -errno. It never touches errno.
 */
#ifndef SYNCLATER_MACHINE_H
#define SYNCLATER_MACHINE_H

#include "numbers.h" /* made of calls.def: NR_* */
#include <stddef.h>
#include <stdint.h>

/* A number as text, for assembler. */
#define SL_TEXT_OF(x) #x
#define SL_TEXT(x)    SL_TEXT_OF(x)

#define ERRNO_MAX 4095
static inline int is_error(long r) { return (unsigned long)r > (unsigned long)-(ERRNO_MAX + 1); }

#if defined(__x86_64__)
#define SL_ARCH "x86_64"

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

static inline uintptr_t thread_number(void)
{
	uintptr_t p;

	__asm__("mov %%fs:0, %0" : "=r"(p));
	return p;
}

#elif defined(__i386__)
#define SL_ARCH "i386"

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

static inline uintptr_t thread_number(void)
{
	uintptr_t p;

	__asm__("mov %%gs:0, %0" : "=r"(p));
	return p;
}

#elif defined(__aarch64__)
#define SL_ARCH "aarch64"

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

#if defined(__x86_64__) || defined(__i386__)
static inline uint64_t counter_ticks(void)
{
	uint32_t lo, hi;

	__asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
	return (uint64_t)hi << 32 | lo;
}
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
