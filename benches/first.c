/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * How long a session takes to begin: first FILE
 *
 * Appends and syncs until a sync is answered faster than any disk does, and prints how many were
 * made for real before it, and the milliseconds from the start of main to it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define FASTER_THAN_A_DISK_NS 20000
#define MOST 1000000

static long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

int main(int count, char **arguments)
{
	long begin = now_ns(), before;
	static char block[4096];
	int fd;

	if (count != 2)
		return 2;
	fd = open(arguments[1], O_CREAT | O_WRONLY | O_TRUNC, 0600);
	for (long n = 0; n < MOST; n++) {
		if (write(fd, block, sizeof block) != sizeof block)
			return 1;
		before = now_ns();
		if (fsync(fd))
			return 1;
		if (now_ns() - before < FASTER_THAN_A_DISK_NS) {
			printf("%ld %.3f\n", n, (double)(now_ns() - begin) / 1e6);
			return 0;
		}
	}
	return 1;
}
