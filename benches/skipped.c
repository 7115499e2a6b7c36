/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What a call of fdatasync costs that is answered at once.
 *
 *   skipped THREADS CALLS      in the current folder; each thread has a file of its own, and one
 *                              thread is the program's first: a program that starts none
 *
 * First it writes and syncs until the syncs have stopped to take a disk's time (a session makes the
 * first ones for real), then all threads call fdatasync CALLS times each on files that are clean.
 * Prints nanoseconds of wall time a call of one thread, and how many calls were measured.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 512
#define CHEAP_NS    20000
#define CHEAP_RUN   100
#define WARM_UP_NS  5e9

static pthread_barrier_t start;
static pthread_mutex_t warms_up = PTHREAD_MUTEX_INITIALIZER;
static long calls;

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Returns 0 once CHEAP_RUN syncs of dirty pages in a row took less than any disk. */
static int warm_up(int fd)
{
	char byte = 1;
	double end_ns = now_ns() + WARM_UP_NS, before_ns;
	int run = 0;

	while (run < CHEAP_RUN && now_ns() < end_ns) {
		if (pwrite(fd, &byte, 1, 0) != 1)
			return -1;
		before_ns = now_ns();
		if (fdatasync(fd))
			return -1;
		run = now_ns() - before_ns < CHEAP_NS ? run + 1 : 0;
		if (!run)
			usleep(2000);
	}
	return run < CHEAP_RUN ? -1 : 0;
}

struct hammer {
	char name[32];
	double took_ns;
};

static void *hammer(void *argument)
{
	struct hammer *h = argument;
	int fd = open(h->name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	double begin_ns;
	long i;
	int is_cold;

	/* One after the other: what many ask at once takes its time. */
	pthread_mutex_lock(&warms_up);
	is_cold = fd < 0 || warm_up(fd);
	pthread_mutex_unlock(&warms_up);
	if (is_cold) {
		fprintf(stderr, "skipped: syncs are not answered at once here\n");
		exit(1);
	}
	pthread_barrier_wait(&start);
	begin_ns = now_ns();
	for (i = 0; i < calls; i++)
		if (fdatasync(fd))
			exit(1);
	h->took_ns = now_ns() - begin_ns;
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 1, i;
	static struct hammer hammers[THREADS_MAX];
	pthread_t thread[THREADS_MAX];
	double took_ns = 0;

	calls = argc > 2 ? atol(argv[2]) : 1000000;
	if (threads < 1 || threads > THREADS_MAX || calls < 1)
		return 2;
	pthread_barrier_init(&start, NULL, threads);
	for (i = 0; i < threads; i++)
		snprintf(hammers[i].name, sizeof hammers[i].name, "skipped.%d", i);
	for (i = 1; i < threads; i++)
		pthread_create(&thread[i], NULL, hammer, &hammers[i]);
	hammer(&hammers[0]);
	for (i = 1; i < threads; i++)
		pthread_join(thread[i], NULL);
	for (i = 0; i < threads; i++) {
		unlink(hammers[i].name);
		if (hammers[i].took_ns > took_ns)
			took_ns = hammers[i].took_ns;
	}
	printf("%.2f %ld\n", took_ns / calls, calls * threads);
	return 0;
}
