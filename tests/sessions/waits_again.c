/* waits_again HOW: waits for three seconds in epoll_wait, leaves that when its input ends, and
 * waits again for as long, at the same place. HOW is "jump": a signal's handler leaves it for good;
 * "exec": another thread executes this program anew, with the number of the first one; "event": it
 * returns. Says "ready" before the first wait, and "took MILLISECONDS" behind the second.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static sigjmp_buf out;
static const char *how;
static pthread_t first;
static int ends[2];

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void jump(int signal)
{
	(void)signal;
	siglongjmp(out, 1);
}

static void *listen(void *unused)
{
	char byte;

	(void)unused;
	(void)!read(0, &byte, 1);
	if (!strcmp(how, "jump"))
		pthread_kill(first, SIGUSR1);
	else if (!strcmp(how, "event"))
		(void)!write(ends[1], "x", 1);
	else
		execl("/proc/self/exe", "waits_again", "last", NULL);
	return NULL;
}

/* The one place where it waits. */
static __attribute__((noinline)) long waited(int events)
{
	struct epoll_event event;
	long begin = now();

	epoll_wait(events, &event, 1, 3000);
	return now() - begin;
}

int main(int count, char **words)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int events = epoll_create1(EPOLL_CLOEXEC);
	pthread_t thread;

	how = count > 1 ? words[1] : "";
	/* Without a request nobody would attach to a static program. */
	fsync(-1);
	first = pthread_self();
	signal(SIGUSR1, jump);
	setlinebuf(stdout);
	if (pipe(ends) || epoll_ctl(events, EPOLL_CTL_ADD, ends[0], &event))
		return 1;
	if (strcmp(how, "last")) {
		puts("ready");
		pthread_create(&thread, NULL, listen, NULL);
		if (!sigsetjmp(out, 1))
			waited(events);
	}
	printf("took %ld\n", waited(events));
	return 0;
}
