/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What one sync costs on a disk: appends 4 KiB and calls fsync, 100 times, in the folder that is
 * given. Prints median, 90th percentile and maximum in microseconds. The file is removed.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define COUNT 100

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static char block[4096];
	double took_us[COUNT];
	char path[4096];
	int fd, i;

	snprintf(path, sizeof path, "%s/sync_cost.XXXXXX", argc > 1 ? argv[1] : ".");
	fd = mkstemp(path);
	if (fd < 0 || unlink(path)) {
		perror(path);
		return 1;
	}
	for (i = 0; i < COUNT; i++) {
		double before_us;

		if (write(fd, block, sizeof block) != sizeof block) {
			perror("write");
			return 1;
		}
		before_us = now_us();
		if (fsync(fd)) {
			perror("fsync");
			return 1;
		}
		took_us[i] = now_us() - before_us;
	}
	qsort(took_us, COUNT, sizeof took_us[0], by_size);
	printf("%.1f %.1f %.1f\n", took_us[COUNT / 2], took_us[COUNT * 9 / 10], took_us[COUNT - 1]);
	return 0;
}
