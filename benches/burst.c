/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What a call of fdatasync costs a program that makes them in bursts, so that whatever watches it
 * can keep up.
 *
 *   burst BURSTS CALLS PAUSE_US      in the current folder, on a file that is clean
 *
 * First it syncs until that has stopped to take a disk's time, where it does: a session makes the
 * first ones for real. Prints the median of the bursts' nanoseconds a call, and the calls made.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BURSTS_MAX 10000
#define WARM_UP_S  1.0

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
	static double took_ns[BURSTS_MAX];
	long bursts = count > 1 ? atol(arguments[1]) : 0, calls = count > 2 ? atol(arguments[2]) : 0;
	struct timespec pause = { 0, count > 3 ? atol(arguments[3]) * 1000 : 0 };
	double begin_ns = now_ns();
	long made = 0;
	int fd = open("burst", O_CREAT | O_RDWR, 0600);

	if (fd < 0 || bursts < 1 || bursts > BURSTS_MAX || calls < 1 || write(fd, "a", 1) != 1)
		return 2;
	for (; now_ns() - begin_ns < WARM_UP_S * 1e9; made++) {
		struct timespec gap = { 0, 1000000 };

		if (pwrite(fd, "a", 1, 0) != 1 || fdatasync(fd))
			return 1;
		nanosleep(&gap, NULL);
	}
	for (long b = 0; b < bursts; b++) {
		double before_ns;

		nanosleep(&pause, NULL);
		before_ns = now_ns();
		for (long i = 0; i < calls; i++)
			if (fdatasync(fd))
				return 1;
		took_ns[b] = (now_ns() - before_ns) / (double)calls;
		made += calls;
	}
	qsort(took_ns, (size_t)bursts, sizeof *took_ns, less);
	printf("%.1f %ld\n", took_ns[bursts / 2], made);
	unlink("burst");
	return 0;
}
