/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What calls cost that are no sync requests, of which some go through the gate of an attached
 * process (open, pwrite) and others do not (getppid, pread).
 *
 *   opens CALLS      in the current folder; waits for a byte of stdin, then prints nanoseconds of
 *                    one open and close for reading, one for writing, one pread, one getppid, one
 *                    pwrite of a byte
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void opens(int flags, long calls)
{
	double begin_ns = now_ns();
	long i;

	for (i = 0; i < calls; i++)
		close(open("opens.file", flags));
	printf("%.1f\n", (now_ns() - begin_ns) / calls);
}

int main(int count, char **arguments)
{
	long calls = count > 1 ? atol(arguments[1]) : 0, i;
	int fd = open("opens.file", O_RDWR | O_CREAT, 0600);
	double begin_ns;
	char byte = 1;

	if (calls <= 0 || fd < 0 || write(fd, &byte, 1) != 1 || read(0, &byte, 1) < 0)
		return 2;
	opens(O_RDONLY, calls);
	opens(O_WRONLY, calls);
	begin_ns = now_ns();
	for (i = 0; i < calls; i++)
		if (pread(fd, &byte, 1, 0) != 1)
			return 1;
	printf("%.1f\n", (now_ns() - begin_ns) / calls);
	begin_ns = now_ns();
	for (i = 0; i < calls; i++)
		getppid();
	printf("%.1f\n", (now_ns() - begin_ns) / calls);
	begin_ns = now_ns();
	for (i = 0; i < calls; i++)
		if (pwrite(fd, &byte, 1, 0) != 1)
			return 1;
	printf("%.1f\n", (now_ns() - begin_ns) / calls);
	unlink("opens.file");
	return 0;
}
