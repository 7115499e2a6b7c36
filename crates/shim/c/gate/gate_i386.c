/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The gate of i386: what gate.c has in assembler for x86-64, and what the compiler wants of us.
 *
 * Promise: as gate.c. What is not answered goes on to the kernel's own entry, and comes back behind
 * the program's call.
 *
 * Relies on: the same room below the stack pointer, but for the red zone, which i386 does not have.
 */
#include "gate/gate.h"
#include "routes/routes.h"

#if defined(SL_GATE) && defined(__i386__)

/* The calls that are looked at, one bit each, as in gate.c: word by word. */
#define BIT(name, word) | (NR_##name / 64 == (word) ? 1ull << NR_##name % 64 : 0)
#define WORD(calls, n)  (0 calls(BIT, n))
#define WORDS(calls)                                                                           \
	{ WORD(calls, 0), WORD(calls, 1), WORD(calls, 2), WORD(calls, 3),                      \
	  WORD(calls, 4), WORD(calls, 5), WORD(calls, 6), WORD(calls, 7) }
__attribute__((used)) const uint64_t sl_wanted[8] = WORDS(SL_CALLS_gate);
__attribute__((used)) const uint64_t sl_wanted_if_stripped[8] = WORDS(SL_CALLS_marks);

/* What is called in the place of the kernel's own entry, `call *%gs:16`: its arguments are in
 * registers, and all but eax come back as they were. No place is needed: what is not answered goes
 * on to that entry, and comes back behind the call. */
__asm__(".text\n"
	".globl sl_gate\n"
	".hidden sl_gate\n"
	"sl_gate:\n\t"
	"pushf\n\t" /* which a system call keeps */
	/* Behind the call that was there: it is two bytes longer, and may be there again then. */
	"addl $2, 4(%esp)\n\t"
	"cmp $511, %eax\n\t"
	"ja 3f\n\t"
	"push %ecx\n\t"
	"call 1f\n"
	"1:\tpop %ecx\n\t"
	"bt %eax, sl_wanted-1b(%ecx)\n\t"
	"jc 5f\n\t"
	"bt %eax, sl_wanted_if_stripped-1b(%ecx)\n\t"
	"jnc 4f\n\t"
	"mov sl_stripped_at-1b(%ecx), %ecx\n\t"
	"cmpl $0, (%ecx)\n\t"
	"jne 5f\n"
	"4:\tpop %ecx\n\t"
	"jmp 3f\n"
	"5:\tpop %ecx\n\t"
	"push %ebp\n\t"
	"push %edi\n\t"
	"push %esi\n\t"
	"push %edx\n\t"
	"push %ecx\n\t"
	"push %ebx\n\t"
	"push %eax\n\t"
	"mov %esp, %ebp\n\t"
	"and $-16, %esp\n\t"
	/* As C expects them: copying forward, and reading from everywhere (AC). */
	"cld\n\t"
	"testl $0x40000, 28(%ebp)\n\t"
	"jz 1f\n\t"
	"pushf\n\t"
	"andl $~0x40000, (%esp)\n\t"
	"popf\n"
	"1:\tpush $0\n\t"
	"push $0\n\t"
	"push 32(%ebp)\n\t" /* the site: where the call returns to */
	"push %ebp\n\t"
	"call sl_gate_answer\n\t"
	"mov %ebp, %esp\n\t"
	"cmp $0x80000000, %eax\n\t"
	"je 2f\n\t"
	"add $4, %esp\n\t"
	"pop %ebx\n\t"
	"pop %ecx\n\t"
	"pop %edx\n\t"
	"pop %esi\n\t"
	"pop %edi\n\t"
	"pop %ebp\n\t"
	"popf\n\t"
	"ret\n"
	"2:\tpop %eax\n\t"
	"pop %ebx\n\t"
	"pop %ecx\n\t"
	"pop %edx\n\t"
	"pop %esi\n\t"
	"pop %edi\n\t"
	"pop %ebp\n"
	"3:\tpopf\n\t"
	"jmp *%gs:16\n"
	/* Neither Go nor liburing on i386. */
	".globl sl_gate_go\n"
	".hidden sl_gate_go\n"
	".globl sl_gate_uring\n"
	".hidden sl_gate_uring\n"
	".set sl_gate_go, sl_gate\n"
	".set sl_gate_uring, sl_gate\n");

/* As in gate.c. */
__asm__(".text\n"
	".globl sl_there\n"
	".hidden sl_there\n"
	"sl_there:\n\t"
	"push %ebx\n\t"
	"push %esi\n\t"
	"push %ebp\n\t"
	"mov %esp, %ebp\n\t"
	"call 1f\n"
	"1:\tpop %ebx\n\t"
	"mov $1, %esi\n\t"
	"xchg %esi, sl_errand_is_on-1b(%ebx)\n\t"
	"test %esi, %esi\n\t"
	"jnz 2f\n\t"
	"lea sl_errand_stack+8192-1b(%ebx), %esp\n"
	"2:\tpush 24(%ebp)\n\t"
	"push 20(%ebp)\n\t"
	"push 16(%ebp)\n\t"
	"call sl_there_on\n\t"
	"mov %ebp, %esp\n\t"
	"test %esi, %esi\n\t"
	"jnz 3f\n\t"
	"mov %esi, sl_errand_is_on-1b(%ebx)\n"
	"3:\tpop %ebp\n\t"
	"pop %esi\n\t"
	"pop %ebx\n\t"
	"ret\n");

/* Where a followed program begins: see gate.c. There may be no thread pointer yet (musl), so the
 * kernel is entered without it. Every register is as it was, and esp and the signal mask with them;
 * the entry lies on the stack, since there is no red zone that a signal's handler would spare. */
__attribute__((used)) struct sl_arrival sl_arrival = { 0, 0 };

__asm__(".text\n"
	".globl sl_arrive\n"
	".hidden sl_arrive\n"
	"sl_arrive:\n\t"
	"push %eax\n\t" /* room for the entry */
	"pusha\n\t"
	"call 1f\n"
	"1:\tpop %ebx\n\t"
	"mov sl_arrival-1b(%ebx), %eax\n\t"
	"mov %eax, 32(%esp)\n\t"
	"mov sl_arrival+8-1b(%ebx), %ecx\n\t"
	"test %ecx, %ecx\n\t"
	"jz 2f\n\t"
	"mov %eax, (%ecx)\n"
	"2:\tsub $8, %esp\n\t" /* the old mask */
	"push $0\n\t"
	"push $0x400000\n\t" /* SIGURG */
	"mov $" SL_TEXT(NR_rt_sigprocmask) ", %eax\n\t" /* rt_sigprocmask(SIG_UNBLOCK) */
	"mov $1, %ebx\n\t"
	"mov %esp, %ecx\n\t"
	"lea 8(%esp), %edx\n\t"
	"mov $8, %esi\n\t"
	"int $0x80\n\t"
	"mov $" SL_TEXT(NR_getpid) ", %eax\n\t"
	"int $0x80\n\t"
	"mov %eax, %ebx\n\t"
	"mov $" SL_TEXT(NR_gettid) ", %eax\n\t"
	"int $0x80\n\t"
	"mov %eax, %ecx\n\t"
	"mov $23, %edx\n\t"
	"mov $" SL_TEXT(NR_tgkill) ", %eax\n\t"
	"int $0x80\n\t"
	"mov $" SL_TEXT(NR_rt_sigprocmask) ", %eax\n\t" /* rt_sigprocmask(SIG_SETMASK) */
	"mov $2, %ebx\n\t"
	"lea 8(%esp), %ecx\n\t"
	"xor %edx, %edx\n\t"
	"int $0x80\n\t"
	"add $16, %esp\n\t"
	"popa\n\t"
	"ret\n");

/* What the compiler calls for numbers of 64 bits where it may use general registers only. */
static inline int swap8(volatile uint64_t *at, uint64_t *old, uint64_t fresh)
{
	char done;

	__asm__ volatile("lock cmpxchg8b %1\n\tsete %0"
			 : "=q"(done), "+m"(*at), "+A"(*old)
			 : "b"((uint32_t)fresh), "c"((uint32_t)(fresh >> 32))
			 : "memory", "cc");
	return done;
}

#define ATOMIC_8(name) __attribute__((used)) name
uint64_t load8(volatile uint64_t *at, int order) __asm__("__atomic_load_8");
uint64_t ATOMIC_8(load8)(volatile uint64_t *at, int order)
{
	uint64_t now, kept[2];

	(void)order;
	/* The page may not be written, as cmpxchg8b would. */
	__asm__ volatile("movups %%xmm0, %1\n\t"
			 "movq %2, %%xmm0\n\t"
			 "movq %%xmm0, %0\n\t"
			 "movups %1, %%xmm0"
			 : "=m"(now), "=m"(kept)
			 : "m"(*at)
			 : "memory");
	return now;
}

uint64_t exchange8(volatile uint64_t *at, uint64_t fresh, int order) __asm__("__atomic_exchange_8");
uint64_t ATOMIC_8(exchange8)(volatile uint64_t *at, uint64_t fresh, int order)
{
	uint64_t old = 0;

	(void)order;
	while (!swap8(at, &old, fresh))
		;
	return old;
}

void store8(volatile uint64_t *at, uint64_t fresh, int order) __asm__("__atomic_store_8");
void ATOMIC_8(store8)(volatile uint64_t *at, uint64_t fresh, int order)
{
	exchange8(at, fresh, order);
}

uint64_t add8(volatile uint64_t *at, uint64_t by, int order) __asm__("__atomic_fetch_add_8");
uint64_t ATOMIC_8(add8)(volatile uint64_t *at, uint64_t by, int order)
{
	uint64_t old = 0;

	(void)order;
	while (!swap8(at, &old, old + by))
		;
	return old;
}

uint64_t or8(volatile uint64_t *at, uint64_t bits, int order) __asm__("__atomic_fetch_or_8");
uint64_t ATOMIC_8(or8)(volatile uint64_t *at, uint64_t bits, int order)
{
	uint64_t old = 0;

	(void)order;
	while (!swap8(at, &old, old | bits))
		;
	return old;
}

_Bool compare8(volatile uint64_t *at, uint64_t *old, uint64_t fresh, int yes,
	       int no) __asm__("__atomic_compare_exchange_8");
_Bool ATOMIC_8(compare8)(volatile uint64_t *at, uint64_t *old, uint64_t fresh, int yes, int no)
{
	(void)yes, (void)no;
	return swap8(at, old, fresh);
}

#endif
