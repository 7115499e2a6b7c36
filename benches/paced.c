/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Threads that call fdatasync at a given rate, so that what watches them is neither idle nor asked
 * for more than that.
 *
 *   paced THREADS RATE SECONDS      in the current folder; RATE is of all threads together
 *
 * Prints how many calls were made, and how many a second that was.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 64

static double rate, seconds;
static long made;

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *call(void *number)
{
	struct timespec pause = { 0, 200000 };
	char name[32];
	double begin_s, past_s;
	long calls = 0;
	int fd;

	snprintf(name, sizeof name, "paced-%ld", (long)number);
	fd = open(name, O_CREAT | O_RDWR, 0600);
	if (fd < 0 || write(fd, "a", 1) != 1)
		exit(1);
	begin_s = now_s();
	while ((past_s = now_s() - begin_s) < seconds) {
		long due = (long)(past_s * rate);

		for (; calls < due; calls++)
			if (fdatasync(fd))
				exit(1);
		nanosleep(&pause, NULL);
	}
	__atomic_fetch_add(&made, calls, __ATOMIC_RELAXED);
	close(fd);
	unlink(name);
	return NULL;
}

int main(int count, char **arguments)
{
	long threads = count > 3 ? atol(arguments[1]) : 0;
	pthread_t thread[THREADS_MAX];
	double begin_s = now_s();

	if (threads < 1 || threads > THREADS_MAX)
		return 2;
	rate = atof(arguments[2]) / (double)threads;
	seconds = atof(arguments[3]);
	for (long i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, call, (void *)i))
			return 2;
	for (long i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	printf("%ld %.0f\n", made, (double)made / (now_s() - begin_s));
	return 0;
}
