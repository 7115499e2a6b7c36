/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The few instructions that a stopped thread is sent to, wherever there was room for them: they map
 * the library, let it join the session, and go back to what the thread was doing.
 *
 * Promise: nothing here depends on the tracer once it was begun. All that has to be put back is on
 * the thread's own stack, and signals are blocked by the thread itself. Where the tracer is gone,
 * the descriptors do not come, and the thread goes on after SECONDS.
 *
 * The descriptors come by SCM_RIGHTS over a socket pair that the thread makes, the other end of
 * which the tracer takes (pidfd_getfd, Linux 5.6): so neither a root folder, nor a namespace, nor a
 * user is in the way. They are there for some 100 us, with close-on-exec.
 *
 * Nothing outside of this section may be used: it is copied.
 */
#include "gate.h"
#include "syscall.h"

#ifdef __x86_64__
#ifdef __clang__
#define IN_LITTLE_ROOM
#else
#define IN_LITTLE_ROOM __attribute__((optimize("Os")))
#endif
#define BOOT    IN_LITTLE_ROOM __attribute__((section(".gate.boot"), noinline, used, flatten))
#define INLINED inline __attribute__((always_inline))
#define SECONDS 2

enum { NR_rt_sigprocmask = 14, NR_sendto = 44, NR_socketpair = 53 };

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
	"movq $-4, 1120(%rdi)\n\t" /* -EINTR, in saved[0] */
	"addq $2, 1256(%rdi)\n" /* back */
	"1:\tcld\n\t"
	"mov %rdi, %rbx\n\t"
	"call sl_boot_work\n\t"
	"lea 1120(%rbx), %rsp\n\t"
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
SL_STATIC_ASSERT(offsetof(struct sl_errand, saved) == 1120, "the offset in sl_boot");
SL_STATIC_ASSERT(offsetof(struct sl_errand, back) == 1256, "the offset in sl_boot");

/* The tracer looks at it while we wait. */
#define STATE(e, value) __atomic_store_n(&(e)->state, value, __ATOMIC_SEQ_CST)

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

static INLINED long take_fds(const struct sl_errand *e, struct boot_fds *c)
{
	char byte;
	__typeof__(*((struct boot_message *)0)->iov) iov = { &byte, 1 };
	struct boot_message m = { 0, 0, &iov, 1, c, sizeof *c, 0 };
	int32_t *at;
	long r;

	c->len = 0;
	r = raw3(NR_recvmsg, e->fd[0], &m, 0x40000000 /* MSG_CMSG_CLOEXEC */);
	if (is_error(r))
		return r;
	if (c->len == offsetof(struct boot_fds, fd) + 3 * 4)
		return 0;
	/* It has no room for all of them. */
	for (at = c->fd; (char *)at < (char *)c + c->len; at++)
		raw1(NR_close, *at);
	return -24; /* EMFILE */
}

BOOT void sl_boot_work(struct sl_errand *e)
{
	long patience[2] = { SECONDS, 0 };
	struct boot_fds c;
	int64_t answer;
	long r;
	int i;

	/* The errand comes with every signal in it. */
	raw4(NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &e->mask, &e->mask, 8);
	r = raw4(NR_socketpair, 1, 5 | 02000000, 0, e->fd); /* SOCK_SEQPACKET | SOCK_CLOEXEC */
	if (!is_error(r)) {
		raw5(NR_setsockopt, e->fd[0], 1, 20, patience, sizeof patience); /* SO_RCVTIMEO */
		STATE(e, 1);
		r = take_fds(e, &c);
		/* From here on the tracer has the only other end: if it dies we know at once. */
		raw1(NR_close, e->fd[1]);
		if (!is_error(r)) {
			r = map_image(e, c.fd[0]);
			if (!is_error(r))
				r = ((long (*)(struct sl_errand *, const int *))(uintptr_t)e->there)(e, c.fd);
			for (i = 0; i < 3; i++)
				raw1(NR_close, c.fd[i]);
		}
		answer = r;
		raw6(NR_sendto, e->fd[0], &answer, 8, 0x4040 /* DONTWAIT, NOSIGNAL */, 0, 0);
		/* Where the process is stopped (SIGSTOP), it is stopped here again. */
		raw3(NR_read, e->fd[0], &answer, 8);
		raw1(NR_close, e->fd[0]);
	} else {
		STATE(e, r);
	}
	raw4(NR_rt_sigprocmask, 2, &e->mask, NULL, 8);
}
#endif
