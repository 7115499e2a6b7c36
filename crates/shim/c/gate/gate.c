/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The gate: where the system-call sites of a running process lead to while it is attached.
 *
 *   the program's libc           place (struct sl_place)         here
 *     mov $NR, %eax   ──►  jmp ►   mov $NR, %eax
 *                                  lea site(%rip), %r11
 *                                  jmp sl_gate          ──►   decides
 *     syscall         ◄────────────────────────────────────   the program's own call is made
 *     ...             ◄────────────────────────────────────   or is answered
 *
 * Promise: to the program it looks like the system call: every register and flag as it was, but
 * rax, rcx and r11, which a system call changes too; vector registers are not used at all. What is
 * not answered is made by the program's own instruction, so that signals, restarts, cancellation
 * and backtraces are its own. Only a request that is recorded (its time is wanted) or that is
 * changed is made here.
 *
 * Relies on: 128 bytes below the stack pointer belonging to the program (the red zone of the x86-64
 * ABI); 1 KiB of stack below that, 5 where no room is free (core/room.c).
 */
#include "gate/gate.h"
#include "routes/routes.h"

#ifdef SL_GATE

uint32_t *sl_stripped_at;

#ifdef __x86_64__
/* What is done about a call: nothing, so that it goes back at once, which is the rest of those that
 * some sites make (syscall(3), musl's cancellation points); it is looked at, or only while some
 * descriptor has lost its O_SYNC. */
enum { LOOKED_AT = 1, IF_STRIPPED = 2 };
#define ROW_OF(name, what) [256 + NR_##name] = what,

/* A row for each upper byte of a 16-bit number: the first one has nothing in it. */
__attribute__((used)) const struct {
	uint32_t row[256]; /* bytes from here */
	uint8_t kind[3 * 256];
} sl_kinds = {
	.row = { [0] = 1024 + 256, [1] = 1024 + 512, [2 ... 255] = 1024 },
	.kind = { SL_CALLS_gate(ROW_OF, LOOKED_AT) SL_CALLS_marks(ROW_OF, IF_STRIPPED) },
};
SL_STATIC_ASSERT(offsetof(__typeof__(sl_kinds), kind) == 1024, "the rows");

/* A system call keeps the flags. So nothing in front of SAVE changes one, and nothing behind
 * RESTORE: jrcxz looks at none. ROOM is what is left below the stack pointer, with r11 on it. */
#define LEAVE_UNLESS_WANTED(room) \
	"lea -" room "(%rsp), %rsp\n\t" \
	"mov %r11, (%rsp)\n\t" \
	"lea sl_kinds(%rip), %r11\n\t" \
	"movzbl %ah, %ecx\n\t" \
	"mov (%r11,%rcx,4), %ecx\n\t" \
	"lea (%r11,%rcx), %r11\n\t" \
	"movzbl %al, %ecx\n\t" \
	"movzbl (%r11,%rcx), %ecx\n\t" \
	"mov (%rsp), %r11\n\t" \
	"jrcxz 2f\n\t" \
	"lea -1(%rcx), %rcx\n\t" \
	"jrcxz 5f\n\t" \
	"mov sl_stripped_at(%rip), %rcx\n\t" \
	"mov (%rcx), %ecx\n\t" \
	"jrcxz 2f\n\t" \
	"jmp 5f\n" \
	"8:\tpopfq\n" \
	"2:\tlea " room "(%rsp), %rsp\n\t" \
	"mov (%r11), %rcx\n\t" \
	"jmp *%rcx\n" \
	"5:\tpushfq\n\t" \
	"cmp $511, %rax\n\t" /* there were 16 bits */ \
	"ja 8b\n\t"
/* What both gates begin and end with. The stack holds struct frame where C is called; rbx, which C
 * preserves, says where. */
#define SAVE \
	"push %rbx\n\t" \
	"push %r9\n\t" \
	"push %r8\n\t" \
	"push %r10\n\t" \
	"push %rdx\n\t" \
	"push %rsi\n\t" \
	"push %rdi\n\t" \
	"push %rax\n\t" \
	"mov %rsp, %rbx\n\t" \
	"mov %rsp, %rdi\n\t"
/* As C expects them: copying forward, and reading from everywhere (AC). */
#define SET_FLAGS \
	"cld\n\t" \
	"testl $0x40000, 64(%rbx)\n\t" \
	"jz 1f\n\t" \
	"pushfq\n\t" \
	"andl $~0x40000, (%rsp)\n\t" \
	"popfq\n" \
	"1:\t"
#define RESTORE \
	"pop %rdi\n\t" \
	"pop %rsi\n\t" \
	"pop %rdx\n\t" \
	"pop %r10\n\t" \
	"pop %r8\n\t" \
	"pop %r9\n\t" \
	"pop %rbx\n\t" \
	"popfq\n\t" \
	"pop %r11\n\t"
/* To where r11 points, and so many bytes further as rcx has it. */
#define GO_BACK \
	"mov (%r11), %r11\n\t" \
	"lea (%r11,%rcx), %rcx\n\t" \
	"jmp *%rcx\n"

__asm__(".text\n"
	".globl sl_gate\n"
	".hidden sl_gate\n"
	"sl_gate:\n\t"
	LEAVE_UNLESS_WANTED("136")
	SAVE
	"mov (%r11), %rsi\n\t"
	"and $-16, %rsp\n\t"
	SET_FLAGS
	"call sl_gate_answer\n\t"
	"mov %rbx, %rsp\n\t"
	"mov $1, %ecx\n\t"
	"shl $63, %rcx\n\t"
	"cmp %rcx, %rax\n\t"
	"mov $2, %ecx\n\t" /* behind the call */
	"jne 1f\n\t"
	"mov (%rsp), %rax\n\t"
	"xor %ecx, %ecx\n" /* to the call */
	"1:\t"
	"lea 8(%rsp), %rsp\n\t"
	RESTORE
	"lea 128(%rsp), %rsp\n\t"
	GO_BACK);

/* Go's stacks are small, and grow only where a function begins: C is called on one of ours. Where
 * none is free, which takes as many threads in here at once, the request is made by the program and
 * not counted; where a write may need its sync, or the process may restrict itself, one is waited
 * for. Go knows no red zone. */
#define STACK_SHIFT 15
#define STACKS      16
__attribute__((used)) char sl_stacks[STACKS << STACK_SHIFT] __attribute__((aligned(4096)));
__attribute__((used)) uint64_t sl_free_stacks = (1ull << STACKS) - 1;
SL_STATIC_ASSERT(STACK_SHIFT == 15, "the numbers below");

__asm__(".text\n"
	".globl sl_gate_go\n"
	".hidden sl_gate_go\n"
	"sl_gate_go:\n\t"
	LEAVE_UNLESS_WANTED("8")
	SAVE
	"push %r12\n\t"
	"mov (%r11), %rsi\n"
	"3:\tmov sl_free_stacks(%rip), %rcx\n\t"
	"bsf %rcx, %r12\n\t"
	"jz 4f\n\t"
	"lock btr %r12, sl_free_stacks(%rip)\n\t"
	"jnc 3b\n\t"
	"mov %r12, %rcx\n\t"
	"shl $15, %rcx\n\t"
	"lea sl_stacks + 32768(%rip), %rsp\n\t"
	"add %rcx, %rsp\n\t"
	SET_FLAGS
	"call sl_gate_answer\n\t"
	"lea -8(%rbx), %rsp\n\t"
	"lock bts %r12, sl_free_stacks(%rip)\n\t"
	"mov $1, %ecx\n\t"
	"shl $63, %rcx\n\t"
	"cmp %rcx, %rax\n\t"
	"mov $2, %ecx\n\t"
	"jne 1f\n"
	"8:\tmov (%rbx), %rax\n\t"
	"xor %ecx, %ecx\n"
	"1:\tpop %r12\n\t"
	"lea 8(%rsp), %rsp\n\t"
	RESTORE
	GO_BACK
	/* No stack is free. */
	"4:\tmov 8(%rbx), %ecx\n\t" /* the first argument */
	"cmpl $" SL_TEXT(NR_seccomp) ", (%rbx)\n\t" /* a filter */
	"jne 6f\n\t"
	"cmp $2, %ecx\n\t"
	"jb 5f\n\t"
	"jmp 8b\n"
	"6:\tcmpl $" SL_TEXT(NR_prctl) ", (%rbx)\n\t" /* what sl_restricts names */
	"jne 7f\n\t"
	"cmp $22, %ecx\n\t"
	"je 5f\n\t"
	"cmp $26, %ecx\n\t"
	"je 5f\n\t"
	"cmp $59, %ecx\n\t"
	"je 5f\n\t"
	"jmp 8b\n"
	"7:\tmov sl_stripped_at(%rip), %rcx\n\t"
	"cmpl $0, (%rcx)\n\t"
	"je 8b\n"
	"5:\tmov $" SL_TEXT(NR_sched_yield) ", %eax\n\t"
	"syscall\n\t"
	"jmp 3b\n");

/* Waits until each one that is on another of these stacks has left it once: it may still ask for
 * what a filter on all threads forbids. That is soon, or when the disk has answered; what takes a
 * million looks (a second and more where processors are few) is not waited for: it asks for nothing
 * behind the disk's answer any more (sl_real). */
static void wait_for_stacks(void)
{
	const uint64_t all = (1ull << STACKS) - 1;
	char here;
	uint64_t at = (uint64_t)(uintptr_t)&here - (uint64_t)(uintptr_t)sl_stacks, others;
	unsigned looks = 1000000;

	if (at >= sizeof sl_stacks)
		return;
	others = ~LOAD(sl_free_stacks) & all & ~(1ull << (at >> STACK_SHIFT));
	while (others && looks--) {
		raw0(NR_sched_yield);
		others &= ~LOAD(sl_free_stacks);
	}
}

/* In front of liburing's function that hands entries over to the kernel: its only argument is the
 * ring. What a function may change is kept all the same, but for the vector registers, which are
 * not used. */
__asm__(".text\n"
	".globl sl_gate_uring\n"
	".hidden sl_gate_uring\n"
	"sl_gate_uring:\n\t"
	"push %rax\n\t"
	"push %rcx\n\t"
	"push %r11\n\t"
	"pushfq\n\t"
	SAVE
	"and $-16, %rsp\n\t"
	"cld\n\t"
	"call sl_submit\n\t"
	"mov %rbx, %rsp\n\t"
	"lea 8(%rsp), %rsp\n\t"
	RESTORE
	"pop %rcx\n\t"
	"pop %rax\n\t"
	"ret\n");

/* A program that is followed from its execution on begins here instead of at its own entry, where
 * its libraries are not there yet when it is executed: the dynamic linker jumps to where the
 * auxiliary vector says. The signal, which is ignored by default, stops it for the tracer, if there
 * is one; every register is then as it was but those that a system call changes, and rdx, rsp and
 * the signal mask are what the entry expects. */
__attribute__((used)) struct sl_arrival sl_arrival = { 0, 0 };

__asm__(".text\n"
	".globl sl_arrive\n"
	".hidden sl_arrive\n"
	"sl_arrive:\n\t"
	"push %rax\n\t"
	"push %rdx\n\t"
	"sub $16, %rsp\n\t" /* the set to unblock, the old mask */
	"mov sl_arrival(%rip), %rax\n\t"
	"mov %rax, 24(%rsp)\n\t"
	"mov sl_arrival+8(%rip), %rcx\n\t"
	"test %rcx, %rcx\n\t"
	"jz 1f\n\t"
	"mov %rax, (%rcx)\n"
	"1:\tmovq $0x400000, (%rsp)\n\t" /* SIGURG */
	"mov $" SL_TEXT(NR_rt_sigprocmask) ", %eax\n\t" /* rt_sigprocmask(SIG_UNBLOCK) */
	"mov $1, %edi\n\t"
	"mov %rsp, %rsi\n\t"
	"lea 8(%rsp), %rdx\n\t"
	"mov $8, %r10d\n\t"
	"syscall\n\t"
	"mov $" SL_TEXT(NR_getpid) ", %eax\n\t"
	"syscall\n\t"
	"mov %rax, %r8\n\t"
	"mov $" SL_TEXT(NR_gettid) ", %eax\n\t"
	"syscall\n\t"
	"mov %r8, %rdi\n\t"
	"mov %rax, %rsi\n\t"
	"mov $23, %edx\n\t"
	"mov $" SL_TEXT(NR_tgkill) ", %eax\n\t"
	"syscall\n\t"
	"mov $" SL_TEXT(NR_rt_sigprocmask) ", %eax\n\t" /* rt_sigprocmask(SIG_SETMASK) */
	"mov $2, %edi\n\t"
	"lea 8(%rsp), %rsi\n\t"
	"xor %edx, %edx\n\t"
	"mov $8, %r10d\n\t"
	"syscall\n\t"
	"add $16, %rsp\n\t"
	"pop %rdx\n\t"
	"lea 8(%rsp), %rsp\n\t"
	"jmp *-8(%rsp)\n"); /* in the red zone */

#endif

struct frame {
	long nr, a[6];
};

/* What a call that is no request means for the session: mostly it is made by the program. */
static long look_at(const long *a, long nr)
{
	switch (nr) {
	case NR_open:
		return sl_gate_open(nr, AT_FDCWD_, (const char *)a[0], (int)a[1], (unsigned)a[2]);
	case NR_openat:
		return sl_gate_open(nr, (int)a[0], (const char *)a[1], (int)a[2], (unsigned)a[3]);
	case NR_openat2:
		return sl_gate_open_how((int)a[0], (const char *)a[1], (const void *)a[2],
					(size_t)a[3]);
	case NR_open_by_handle_at:
		return sl_gate_open_handle((int)a[0], (void *)a[1], (int)a[2]);
	case NR_io_uring_setup:
		/* It may write by a ring that nobody sees. */
		sl.keeps_sync = 1;
		sl_slot_flag(SL_SLOT_URING);
		return SL_AT_SITE;
	default:
		return SL_AT_SITE;
	}
}

/* The calls that matter where a descriptor has lost its O_SYNC. */
static long answer_for_marks(const struct frame *f, uint64_t site)
{
	const long *a = f->a;

	switch (f->nr) {
	case NR_write:
	case NR_pwrite64:
	case NR_writev:
	case NR_pwritev:
	case NR_sendfile:
#ifdef __i386__
	case NR_sendfile64:
#endif
		return sl_gate_write((int)a[0], f->nr, a, site);
	case NR_splice:
	case NR_copy_file_range:
		return sl_gate_write((int)a[2], f->nr, a, site);
	case NR_fcntl:
#ifdef __i386__
	case NR_fcntl32:
#endif
		return sl_gate_file_control(f->nr, (int)a[0], (int)a[1], a[2]);
	default:
		return SL_AT_SITE;
	}
}

/* A call by which the program may restrict itself, made here. */
static long restrict_itself(long nr, const long a[6])
{
	uint64_t *trying = sl_begin_restricting(nr, a);
	long r;

#ifdef __x86_64__
	if (nr == NR_seccomp && (uint32_t)a[1] & 1 /* SECCOMP_FILTER_FLAG_TSYNC */)
		wait_for_stacks();
#endif
	r = raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
	sl_end_restricting(trying, nr, a, r);
	return r;
}

/* The answer to a call, or SL_AT_SITE: the program is to make it. SITE is where. */
__attribute__((used)) long sl_gate_answer(const struct frame *f, uint64_t site)
{
	const long *a = f->a;
	long r;

	/* Also where another thread is about to restrict the process: one of the two may fail. Behind
	 * one that stands it matters no more what the next one answers, but where it is made: filters
	 * and dispatchers may look at that. */
	if (f->nr == NR_prctl || f->nr == NR_seccomp)
		return LOAD(sl.levels) && sl_restricts(f->nr, a) &&
				       !LOAD(sl.outside) ?
			       restrict_itself(f->nr, a) :
			       SL_AT_SITE;
	if (!sl_active())
		return answer_for_marks(f, site);
	switch (f->nr) {
	case NR_fsync:
	case NR_fdatasync:
	case NR_syncfs:
	case NR_sync:
	case NR_msync:
	case NR_sync_file_range:
	case NR_pwritev2:
		return sl_covered(f->nr, a[0], a[1], a[2], a[3], a[4], a[5], site);
	case NR_umount2:
		return sl_umount(f->nr, (const char *)a[0], a[1]);
#ifdef __i386__
	case NR_umount:
		return sl_umount(f->nr, (const char *)a[0], 0);
#endif
	case NR_io_submit:
		return sl_io_submit(a[0], a[1], (void **)a[2]);
	default:
		r = look_at(a, f->nr);
		return r == SL_AT_SITE ? answer_for_marks(f, site) : r;
	}
}

/* liburing is about to hand over what is queued in the ring. */
__attribute__((used)) void sl_submit(const struct frame *f) { sl_put_off_ring((void *)f->a[0]); }

/* Joins the session that the errand names; called in the process's memory, by a helper of its own,
 * signals blocked. What it executes comes by the SOCKET. Where nobody else has it, this is called
 * on a stack of ours. */
__attribute__((used)) char sl_errand_stack[SL_ERRAND_STACK] __attribute__((aligned(16)));
__attribute__((used)) uint32_t sl_errand_is_on;

__attribute__((used)) long sl_there_on(const struct sl_errand *e, const int *fd, int socket)
{
	static char exe[SL_EXE_MAX];
	long n = e->exe_len ? raw3(NR_read, socket, exe, sizeof exe - 1) : 0;

	if (n != (long)e->exe_len)
		return is_error(n) ? n : -EPIPE_;
	exe[n] = 0;
	sl.ready = 1; /* decides nothing meanwhile */
	return sl_attach(e, n ? exe : NULL, fd[1], fd[2]);
}

#ifdef __x86_64__
__asm__(".text\n"
	".globl sl_there\n"
	".hidden sl_there\n"
	"sl_there:\n\t"
	"push %rbx\n\t"
	"push %r12\n\t"
	"mov %rsp, %rbx\n\t"
	"mov $1, %r12d\n\t"
	"xchg %r12d, sl_errand_is_on(%rip)\n\t"
	"test %r12d, %r12d\n\t"
	"jnz 1f\n\t"
	"lea sl_errand_stack + 8192(%rip), %rsp\n"
	"1:\tcall sl_there_on\n\t"
	"mov %rbx, %rsp\n\t"
	"test %r12d, %r12d\n\t"
	"jnz 2f\n\t"
	"mov %r12d, sl_errand_is_on(%rip)\n"
	"2:\tpop %r12\n\t"
	"pop %rbx\n\t"
	"ret\n");
#endif
SL_STATIC_ASSERT(SL_ERRAND_STACK == 8192, "sl_there");

#endif
