/* waits_signals HOW THREADS: each thread waits with a time limit, again and again.
 *
 *   open      in epoll_pwait, in which alone a signal is open that comes at about the end of the
 *             limit: where that returns 0 no handler has run
 *   turns     in sigtimedwait, for 10 ms and 100 ms in turn, at the same place and by the same
 *             pointer: neither ends sooner
 *
 * Says "ready", and at the end of its input "waits N wrong M".
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, LIMIT_MS = 150, MILLION = 1000000 };

static atomic_int is_over;
static atomic_long waits, wrong;
static __thread volatile int has_run;

static void must(int is_done, const char *what)
{
	if (!is_done) {
		perror(what);
		exit(1);
	}
}

static void handle(int signal)
{
	(void)signal;
	has_run = 1;
}

static long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * MILLION + t.tv_nsec / 1000;
}

static void *wait_open(void *seed)
{
	unsigned random = (unsigned)(long)seed;
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1 };
	int events = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event got;
	sigset_t set, none;
	timer_t timer;

	event._sigev_un._tid = (int)syscall(SYS_gettid);
	sigemptyset(&none);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	must(events >= 0 && !timer_create(CLOCK_MONOTONIC, &event, &timer), "a timer");
	while (!is_over) {
		long us = LIMIT_MS * 1000 - 200 + rand_r(&random) % 700;
		struct itimerspec at = { .it_value.tv_nsec = us * 1000 }, off = { 0 };
		struct timespec at_once = { 0 };

		has_run = 0;
		timer_settime(timer, 0, &at, NULL);
		if (epoll_pwait(events, &got, 1, LIMIT_MS, &none) == 0 && has_run)
			wrong++;
		timer_settime(timer, 0, &off, NULL);
		sigtimedwait(&set, NULL, &at_once);
		waits++;
	}
	return NULL;
}

static void *wait_in_turns(void *unused)
{
	struct timespec limit = { 0 };
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	while (!is_over) {
		limit.tv_nsec = (limit.tv_nsec == 10 * MILLION ? 100 : 10) * MILLION;
		long begin = now_us();

		if (sigtimedwait(&set, NULL, &limit) >= 0 || now_us() - begin < limit.tv_nsec / 1000)
			wrong++;
		waits++;
	}
	return unused;
}

int main(int count, char **words)
{
	struct sigaction action = { .sa_handler = handle };
	pthread_t threads[MOST];
	sigset_t set;
	char line[20];

	if (count != 3 || atoi(words[2]) > MOST)
		return 2;
	sigaction(SIGUSR1, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	void *(*wait)(void *) = strcmp(words[1], "open") ? wait_in_turns : wait_open;

	for (long k = 0; k < atoi(words[2]); k++)
		must(!pthread_create(&threads[k], NULL, wait, (void *)k), "a thread");
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		;
	is_over = 1;
	for (int k = 0; k < atoi(words[2]); k++)
		pthread_join(threads[k], NULL);
	printf("waits %ld wrong %ld\n", waits, wrong);
	return 0;
}
