/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What a mail server does for each message that it stores in a maildir:
 *
 *   maildir FOLDER COUNT      create tmp/N, write 4 KiB, fsync, rename to new/N, fsync of new/
 *
 * Stops at the first error, with status 1.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int deliver(int dir, int fresh, long number)
{
	static char message[4096] = "Subject: one of many\n\n";
	char from[64], to[64];
	int fd;

	snprintf(from, sizeof from, "tmp/%ld", number);
	snprintf(to, sizeof to, "new/%ld", number);
	fd = openat(dir, from, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd < 0 || write(fd, message, sizeof message) != sizeof message || fsync(fd) || close(fd))
		return -1;
	return renameat(dir, from, dir, to) || fsync(fresh);
}

int main(int argc, char **argv)
{
	int dir, fresh;
	long i, count;

	if (argc != 3)
		return 2;
	count = atol(argv[2]);
	dir = open(argv[1], O_RDONLY | O_DIRECTORY);
	if (dir < 0 || mkdirat(dir, "tmp", 0700) || mkdirat(dir, "new", 0700)) {
		perror(argv[1]);
		return 1;
	}
	fresh = openat(dir, "new", O_RDONLY | O_DIRECTORY);
	for (i = 0; i < count; i++) {
		if (deliver(dir, fresh, i)) {
			perror("maildir");
			return 1;
		}
	}
	return 0;
}
