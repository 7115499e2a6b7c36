/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The few instructions that a stopped thread is sent to, wherever there was room for them: they map
 * the library, let it join the session, and go back to what the thread was doing.
 *
 * Promise: nothing here depends on the tracer once it was begun. All that has to be put back is on
 * the thread's own stack, and signals are blocked by the thread itself. Where the tracer is gone,
 * the descriptors do not come, and the thread goes on after SECONDS.
 *
 * Whatever needs a descriptor is done by a helper, a process with the same memory and a table of
 * descriptors of its own, while the thread waits for its end (as in vfork(2)): the program's
 * numbers stay free, and nothing that the program places by dup2(2) comes between. It sends no
 * signal when it ends, and only __WCLONE or __WALL would see it (wait(2)).
 *
 * The descriptors come by SCM_RIGHTS over a socket pair that the helper makes, the other end of
 * which the tracer takes (pidfd_getfd, Linux 5.6): so neither a root folder, nor a namespace, nor a
 * user is in the way.
 *
 * Nothing outside of this section may be used: it is copied.
 */
#include "base/machine.h"
#include "gate/gate.h"

#ifdef __x86_64__
#ifdef __clang__
#define IN_LITTLE_ROOM
#else
#define IN_LITTLE_ROOM __attribute__((optimize("Os")))
#endif
#define BOOT    IN_LITTLE_ROOM __attribute__((section(".gate.boot"), noinline, used, flatten))
#define INLINED inline __attribute__((always_inline))
#define SECONDS 2

/* CLONE_VM, CLONE_VFORK, CLONE_UNTRACED; no signal at its end */
#define HELPER 0x804100
/* How often it is looked whether it has ended: what it had of the program's files is closed then,
 * which asks whoever serves them (FUSE, NFS). A dead one would keep the thread for good. */
#define LOOKS 100000

#define PROT_READ_   1
#define PROT_WRITE_  2
#define PROT_EXEC_   4
#define MAP_PRIVATE_ 2
#define MAP_FIXED_   0x10
/* PRIVATE, ANONYMOUS, NORESERVE, FIXED_NOREPLACE (Linux 4.17) */
#define MAP_ROOM_ 0x104022

/* The thread comes here with the errand in rdi, and rsp below it. If it was waiting in a call it is
 * sent to two bytes behind, and the kernel takes it from there as it does behind every call that
 * was interrupted: back by the length of `syscall`, to make the call again, or, where a signal's
 * handler runs first and the call is to fail for that, not. So it knows by where it begins. */
__asm__(".pushsection .gate.boot.first, \"ax\"\n"
	".globl sl_boot\n"
	".hidden sl_boot\n"
	"sl_boot:\n\t"
	"jmp 1f\n\t"
	"movq $-4, 104(%rdi)\n\t" /* -EINTR, in saved[0] */
	"addq $2, 240(%rdi)\n" /* back */
	"1:\tcld\n\t"
	"mov %rdi, %rbx\n\t"
	"call sl_boot_work\n\t"
	"lea 104(%rbx), %rsp\n\t"
	"pop %rax\n\t"
	"pop %rbx\n\t"
	"pop %rcx\n\t"
	"pop %rdx\n\t"
	"pop %rsi\n\t"
	"pop %rdi\n\t"
	"pop %rbp\n\t"
	"pop %r8\n\t"
	"pop %r9\n\t"
	"pop %r10\n\t"
	"pop %r11\n\t"
	"pop %r12\n\t"
	"pop %r13\n\t"
	"pop %r14\n\t"
	"pop %r15\n\t"
	"lea 8(%rsp), %rsp\n\t" /* saved[15] only aligns */
	"popf\n\t"
	"ret $128\n"
	".popsection\n");
SL_STATIC_ASSERT(offsetof(struct sl_errand, saved) == 104, "the offset in sl_boot");
SL_STATIC_ASSERT(offsetof(struct sl_errand, back) == 240, "the offset in sl_boot");

/* The tracer looks at it while we wait. */
#define STATE(e, value) __atomic_store_n(&(e)->state, (int32_t)(value), __ATOMIC_SEQ_CST)

/* What recvmsg takes, and one message of two descriptors as it brings it. */
struct boot_message {
	void *name;
	size_t name_len;
	struct {
		void *base;
		size_t len;
	} *iov;
	size_t iov_len;
	void *control;
	size_t control_len;
	size_t flags;
};
struct boot_fds {
	size_t len;
	int32_t level, type, fd[4]; /* library, page, slots */
};

/* Maps the image at its place. Returns 0 or -errno. */
static INLINED long map_image(const struct sl_errand *e, int library)
{
	unsigned long data = (unsigned long)e->image + e->data_at;
	long r;

	if (!e->room)
		return 0;
	r = raw6(NR_mmap, e->image, e->room, 0, MAP_ROOM_, -1, 0);
	if (is_error(r))
		return r;
	r = raw6(NR_mmap, e->image, e->data_at, PROT_READ_ | PROT_EXEC_, MAP_PRIVATE_ | MAP_FIXED_,
		 library, 0);
	if (!is_error(r))
		r = raw6(NR_mmap, data, e->whole - e->data_at, PROT_READ_ | PROT_WRITE_,
			 MAP_PRIVATE_ | MAP_FIXED_, library, e->data_at);
	if (!is_error(r))
		return 0;
	raw2(NR_munmap, e->image, e->room);
	return r;
}

static INLINED long take_fds(int socket, struct boot_fds *c)
{
	char byte;
	__typeof__(*((struct boot_message *)0)->iov) iov = { &byte, 1 };
	struct boot_message m = { 0, 0, &iov, 1, c, sizeof *c, 0 };
	long r;

	c->len = 0;
	r = raw3(NR_recvmsg, socket, &m, 0x40000000 /* MSG_CMSG_CLOEXEC */);
	if (is_error(r))
		return r;
	/* EMFILE: it has no room for all of them. */
	return c->len == offsetof(struct boot_fds, fd) + 3 * 4 ? 0 : -24;
}

/* Joins the session. Where that fails, what was mapped for it is taken away: a process near its
 * limits (vm.max_map_count) has use for it. Returns as sl_attach(). */
static INLINED long join(const struct sl_errand *e, const int *fds, int socket)
{
	long (*there)(const struct sl_errand *, const int *, int) =
		(long (*)(const struct sl_errand *, const int *, int))(uintptr_t)e->there;
	long r = there(e, fds, socket);

	if (r && e->room)
		raw2(NR_munmap, e->image, e->room);
	return r;
}

/* The helper's side. */
BOOT void sl_boot_help(struct sl_errand *e)
{
	long patience[2] = { SECONDS, 0 };
	struct boot_fds c;
	int64_t answer;
	int32_t fd[2];
	long r = raw4(NR_socketpair, 1, 5 | 02000000, 0, fd); /* SOCK_SEQPACKET | SOCK_CLOEXEC */

	if (is_error(r)) {
		STATE(e, r);
		return;
	}
	raw5(NR_setsockopt, fd[0], 1, 20, patience, sizeof patience); /* SO_RCVTIMEO */
	e->helper = (int32_t)raw0(NR_getpid);
	e->socket = fd[1];
	STATE(e, 1);
	r = take_fds(fd[0], &c);
	/* From here on the tracer has the only other end: if it dies we know at once. */
	raw1(NR_close, fd[1]);
	if (!is_error(r))
		r = map_image(e, c.fd[0]);
	if (!is_error(r))
		r = join(e, c.fd, fd[0]);
	answer = r;
	raw6(NR_sendto, fd[0], &answer, 8, 0x4040 /* DONTWAIT, NOSIGNAL */, 0, 0);
	/* Until the tracer knows where the thread is to stop. */
	raw3(NR_read, fd[0], &answer, 8);
	raw1(NR_close, fd[0]);
}

/* Has the helper do it, on the stack below ours. Returns its number or -errno. */
static INLINED long have_helped(struct sl_errand *e)
{
	register long r10 __asm__("r10") = 0;
	register long r8 __asm__("r8") = 0;
	long r;

	__asm__ volatile("lea -128(%%rsp), %%rsp\n\t"
			 "syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "mov %%rbx, %%rdi\n\t"
			 "and $-16, %%rsp\n\t"
			 "call sl_boot_help\n\t"
			 "xor %%edi, %%edi\n\t"
			 "mov $" SL_TEXT(NR_exit) ", %%eax\n\t"
			 "syscall\n"
			 "1:\tlea 128(%%rsp), %%rsp"
			 : "=a"(r), "+r"(r10), "+r"(r8)
			 : "0"(NR_clone), "D"(HELPER), "S"(0), "d"(0), "b"(e)
			 : "rcx", "r11", "memory");
	return r;
}

BOOT void sl_boot_work(struct sl_errand *e)
{
	int looks = 0;
	long r;

	/* The errand comes with every signal in it. */
	raw4(NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &e->mask, &e->mask, 8);
	r = have_helped(e);
	if (is_error(r))
		STATE(e, r);
	else
		while (raw4(NR_wait4, r, NULL, 0x80000001 /* __WCLONE | WNOHANG */, NULL) == 0 &&
		       looks++ < LOOKS)
			raw0(NR_sched_yield);
	raw4(NR_rt_sigprocmask, 2, &e->mask, NULL, 8);
}
#endif
