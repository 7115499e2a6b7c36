/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What boot.c is for x86-64: the instructions that a stopped thread is sent to. In assembler, since
 * a static program may have no more room for them than the kernel's own piece of code leaves
 * (vdso(7): 623 bytes behind i386's, Linux 6.18).
 *
 * Promise: as boot.c, with the same system calls in the same order.
 *
 * Nothing outside of this section may be used: it is copied.
 */
#include <stddef.h>

#include "base/machine.h"
#include "gate/gate.h"

#if defined(SL_GATE) && defined(__i386__)

SL_STATIC_ASSERT(offsetof(struct sl_errand, helper) == 4, "the offsets below");
SL_STATIC_ASSERT(offsetof(struct sl_errand, socket) == 8, "the offsets below");
SL_STATIC_ASSERT(offsetof(struct sl_errand, mask) == 16, "the offsets below");
SL_STATIC_ASSERT(offsetof(struct sl_errand, image) == 24, "the offsets below");
SL_STATIC_ASSERT(offsetof(struct sl_errand, room) == 32, "the offsets below");
SL_STATIC_ASSERT(offsetof(struct sl_errand, data_at) == 40, "the offsets below");
SL_STATIC_ASSERT(offsetof(struct sl_errand, whole) == 44, "the offsets below");
SL_STATIC_ASSERT(offsetof(struct sl_errand, there) == 48, "the offsets below");
SL_STATIC_ASSERT(offsetof(struct sl_errand, saved) == 104, "the offsets below");
SL_STATIC_ASSERT(offsetof(struct sl_errand, back) == 240, "the offsets below");

/* ebp is the errand all the time, but where a call has a sixth argument. int $0x80 keeps every
 * register but eax. */
__asm__(".pushsection .gate.boot.first, \"ax\"\n"
	".globl sl_boot\n"
	".hidden sl_boot\n"
	"sl_boot:\n\t"
	"jmp 1f\n\t"
	"movl $-4, 104(%edi)\n\t" /* -EINTR, in saved[0] */
	"addl $2, 240(%edi)\n"    /* back */
	"1:\tcld\n\t"
	"mov %edi, %ebp\n\t"
	"lea 16(%ebp), %edx\n\t"
	"call .Lmask\n\t"
	/* clone(CLONE_VM | CLONE_VFORK | CLONE_UNTRACED, 0, 0, 0, 0) */
	"mov $0x804100, %ebx\n\t"
	"xor %ecx, %ecx\n\t"
	"xor %edx, %edx\n\t"
	"xor %esi, %esi\n\t"
	"xor %edi, %edi\n\t"
	"push $" SL_TEXT(NR_clone) "\n\t"
	"pop %eax\n\t"
	"int $0x80\n\t"
	"test %eax, %eax\n\t"
	"jz .Lhelp\n\t"
	"js .Lalone\n\t"
	/* wait4(the helper, 0, __WCLONE | WNOHANG, 0), as often as boot.c does it */
	"xchg %eax, %ebx\n\t"
	"mov $0x80000001, %edx\n\t"
	"mov $100000, %edi\n"
	"1:\tpush $" SL_TEXT(NR_wait4) "\n\t"
	"pop %eax\n\t"
	"int $0x80\n\t"
	"test %eax, %eax\n\t"
	"jnz 4f\n\t"
	"mov $" SL_TEXT(NR_sched_yield) ", %eax\n\t"
	"int $0x80\n\t"
	"dec %edi\n\t"
	"jnz 1b\n\t"
	"jmp 4f\n"
	".Lalone:\n\t"
	"mov %eax, (%ebp)\n"
	"4:\txor %edx, %edx\n\t"
	"call .Lmask\n\t"
	"lea 104(%ebp), %esp\n\t"
	/* Of each the upper half, which nobody has, goes to the next one first. */
	"pop %eax\n\t"
	"pop %ebx\n\t"
	"pop %ebx\n\t"
	"pop %ecx\n\t"
	"pop %ecx\n\t"
	"pop %edx\n\t"
	"pop %edx\n\t"
	"pop %esi\n\t"
	"pop %esi\n\t"
	"pop %edi\n\t"
	"pop %edi\n\t"
	"pop %ebp\n\t"
	"pop %ebp\n\t"
	"lea 76(%esp), %esp\n\t"
	"popf\n\t"
	"lea 4(%esp), %esp\n\t"
	"ret $132\n"
	/* The helper: socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, two numbers) */
	".Lhelp:\n\t"
	"push $1\n\t"
	"pop %ebx\n\t"
	"mov $0x80005, %ecx\n\t"
	"xor %edx, %edx\n\t"
	"sub $8, %esp\n\t"
	"mov %esp, %esi\n\t"
	"mov $" SL_TEXT(NR_socketpair) ", %eax\n\t"
	"int $0x80\n\t"
	"test %eax, %eax\n\t"
	"js .Lno_socket\n\t"
	"push $" SL_TEXT(NR_getpid) "\n\t"
	"pop %eax\n\t"
	"int $0x80\n\t"
	"mov %eax, 4(%ebp)\n\t"
	"pop %ebx\n\t" /* ebx: our own, until it is needed */
	"popl 8(%ebp)\n\t"
	/* setsockopt(ours, SOL_SOCKET, SO_RCVTIMEO, { 2, 0 }, 8) */
	"push %ebx\n\t"
	"push $0\n\t"
	"push $2\n\t"
	"mov %esp, %esi\n\t"
	"push $1\n\t"
	"pop %ecx\n\t"
	"push $20\n\t"
	"pop %edx\n\t"
	"push $8\n\t"
	"pop %edi\n\t"
	"mov $" SL_TEXT(NR_setsockopt) ", %eax\n\t"
	"int $0x80\n\t"
	/* The tracer looks at it while we wait. */
	"movl $1, (%ebp)\n\t"
	/* recvmsg(ours, a message of one byte and three descriptors, MSG_CMSG_CLOEXEC): edi is
	 * where those come to, as { len, level, type, fd[4] }. */
	"sub $28, %esp\n\t"
	"mov %esp, %edi\n\t"
	"andl $0, (%edi)\n\t"
	"push $1\n\t" /* the byte, in the place of the patience */
	"push %esi\n\t"
	"mov %esp, %eax\n\t"
	"push $0\n\t" /* flags */
	"push $28\n\t"
	"push %edi\n\t"
	"push $1\n\t"
	"push %eax\n\t"
	"push $0\n\t" /* no name */
	"push $0\n\t"
	"mov %esp, %ecx\n\t"
	"mov $0x40000000, %edx\n\t"
	"mov $" SL_TEXT(NR_recvmsg) ", %eax\n\t"
	"int $0x80\n\t"
	"xchg %eax, %esi\n\t" /* esi: what is answered */
	/* From here on the tracer has the only other end: if it dies we know at once. */
	"mov 8(%ebp), %ebx\n\t"
	"push $" SL_TEXT(NR_close) "\n\t"
	"pop %eax\n\t"
	"int $0x80\n\t"
	"test %esi, %esi\n\t"
	"js .Ltell\n\t"
	"push $-24\n\t" /* EMFILE: it has no room for all of them */
	"pop %esi\n\t"
	"cmpl $24, (%edi)\n\t"
	"jne .Ltell\n\t"
	/* The image, unless it is there. */
	"mov 32(%ebp), %ecx\n\t"
	"jecxz .Lthere\n\t"
	"push %edi\n\t"
	"mov 24(%ebp), %ebx\n\t"
	"xor %edx, %edx\n\t"
	"mov $0x104022, %esi\n\t" /* PRIVATE, ANONYMOUS, NORESERVE, FIXED_NOREPLACE */
	"or $-1, %edi\n\t"
	"xor %eax, %eax\n\t"
	"call .Lmap\n\t"
	"ja .Lnot_mapped\n\t"
	"mov (%esp), %edi\n\t"
	"mov 12(%edi), %edi\n\t" /* the library */
	"mov 40(%ebp), %ecx\n\t"
	"push $5\n\t" /* PROT_READ | PROT_EXEC */
	"pop %edx\n\t"
	"push $0x12\n\t" /* MAP_PRIVATE | MAP_FIXED */
	"pop %esi\n\t"
	"xor %eax, %eax\n\t"
	"call .Lmap\n\t"
	"ja .Lunmap\n\t"
	"mov %ecx, %eax\n\t"
	"add %ecx, %ebx\n\t"
	"mov 44(%ebp), %ecx\n\t"
	"sub %eax, %ecx\n\t"
	"shr $12, %eax\n\t"
	"push $3\n\t" /* PROT_READ | PROT_WRITE */
	"pop %edx\n\t"
	"call .Lmap\n\t"
	"jbe .Lmapped\n"
	".Lunmap:\n\t"
	"push %eax\n\t"
	"mov 24(%ebp), %ebx\n\t"
	"mov 32(%ebp), %ecx\n\t"
	"push $" SL_TEXT(NR_munmap) "\n\t"
	"pop %eax\n\t"
	"int $0x80\n\t"
	"pop %eax\n"
	".Lnot_mapped:\n\t"
	"pop %edi\n\t"
	"jmp .Lanswered\n"
	".Lmapped:\n\t"
	"pop %edi\n"
	".Lthere:\n\t"
	"lea 12(%edi), %eax\n\t"
	"push 36(%edi)\n\t" /* our end */
	"push %eax\n\t"
	"push %ebp\n\t"
	"call *48(%ebp)\n\t"
	"test %eax, %eax\n\t"
	"jz .Lanswered\n\t"
	"mov 32(%ebp), %ecx\n\t"
	"jecxz .Lanswered\n\t"
	"push %edi\n\t"
	"jmp .Lunmap\n"
	".Lanswered:\n\t"
	"xchg %eax, %esi\n"
	/* sendto(ours, the answer, 8, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0): edi + 28 is where the patience
	 * is, and behind that our end. */
	".Ltell:\n\t"
	"mov 36(%edi), %ebx\n\t"
	"mov %esi, %eax\n\t"
	"cltd\n\t"
	"push %edx\n\t"
	"push %eax\n\t"
	"mov %esp, %ecx\n\t"
	"push $8\n\t"
	"pop %edx\n\t"
	"mov $0x4040, %esi\n\t"
	"xor %edi, %edi\n\t"
	"xor %ebp, %ebp\n\t"
	"mov $" SL_TEXT(NR_sendto) ", %eax\n\t"
	"int $0x80\n\t"
	/* read: until the tracer knows where the thread is to stop. */
	"push $" SL_TEXT(NR_read) "\n\t"
	"pop %eax\n\t"
	"int $0x80\n\t"
	"push $" SL_TEXT(NR_close) "\n\t"
	"pop %eax\n\t"
	"int $0x80\n"
	".Lexit:\n\t"
	"xor %ebx, %ebx\n\t"
	"push $" SL_TEXT(NR_exit) "\n\t"
	"pop %eax\n\t"
	"int $0x80\n"
	".Lno_socket:\n\t"
	"mov %eax, (%ebp)\n\t"
	"jmp .Lexit\n"
	/* rt_sigprocmask(SIG_SETMASK, &e->mask, edx, 8) */
	".Lmask:\n\t"
	"push $2\n\t"
	"pop %ebx\n\t"
	"lea 16(%ebp), %ecx\n\t"
	"push $8\n\t"
	"pop %esi\n\t"
	"mov $" SL_TEXT(NR_rt_sigprocmask) ", %eax\n\t"
	"int $0x80\n\t"
	"ret\n"
	/* mmap2(ebx, ecx, edx, esi, edi, eax); then `ja` where it failed. */
	".Lmap:\n\t"
	"push %ebp\n\t"
	"xchg %eax, %ebp\n\t"
	"mov $" SL_TEXT(NR_mmap) ", %eax\n\t"
	"int $0x80\n\t"
	"pop %ebp\n\t"
	"cmp $0xfffff000, %eax\n\t"
	"ret\n"
	".popsection\n");

#endif
