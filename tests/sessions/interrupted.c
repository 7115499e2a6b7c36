/* Waits in calls that a signal is to interrupt, which comes some time within a millisecond; again
 * and again, in one thread: for what happens to a signal that comes while the thread is elsewhere.
 *
 *   interrupted DIRECTORY
 *
 * Says "ready", and at the end of its input "rounds N wrong M"; each wrong answer goes to stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static volatile int waits;
static volatile sig_atomic_t is_early, taken;
extern char begin_of_wait[], entry_of_wait[];

/* One call, of which it is known at each instruction whether it has begun. */
static __attribute__((noinline, noclone)) long wait_by(long nr, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	long r;

	__asm__ volatile("movl $1, waits(%%rip)\n"
			 "begin_of_wait:\n\t"
			 "mov %1, %%rax\n"
			 "entry_of_wait:\n\t"
			 "syscall"
			 : "=&a"(r)
			 : "r"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return r;
}

/* A signal in front of the call does not interrupt it. */
static void handler(int number, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];

	(void)number, (void)info;
	taken++;
	if (!waits || (at >= (uintptr_t)begin_of_wait && at <= (uintptr_t)entry_of_wait))
		is_early = 1;
}

static long wait_in(long round, int epoll, int pipe)
{
	struct timespec two = { 2, 0 };
	struct epoll_event event;
	char byte;

	switch (round % 4) {
	case 0:
		return wait_by(SYS_nanosleep, (long)&two, 0, 0, 0);
	case 1:
		return wait_by(SYS_poll, 0, 0, 2000, 0);
	case 2:
		return wait_by(SYS_epoll_wait, epoll, (long)&event, 1, 2000);
	default:
		return wait_by(SYS_read, pipe, (long)&byte, 1, 0);
	}
}

int main(int count, char **arguments)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
	struct pollfd input = { 0, POLLIN, 0 };
	long round, wrong = 0;
	int ends[2], epoll = epoll_create1(0);
	timer_t timer;

	if (count < 2 || chdir(arguments[1]) || pipe(ends))
		return 2;
	sigaction(SIGALRM, &action, NULL); /* without SA_RESTART */
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	for (round = 0; poll(&input, 1, 0) == 0; round++) {
		/* A second one, late: without it nothing would end a wait that goes on. */
		struct itimerspec in = { { 1, 0 }, { 0, 20000 + rand() % 1000000 } };
		long r;

		waits = 0, is_early = 0, taken = 0;
		timer_settime(timer, 0, &in, NULL);
		r = wait_in(round, epoll, ends[0]);
		waits = 0;
		if (r != -EINTR || (!is_early && taken != 1)) {
			fprintf(stderr, "round %ld: %ld, %d signals\n", round, r, (int)taken);
			wrong++;
		}
	}
	printf("rounds %ld wrong %ld\n", round, wrong);
	return 0;
}
