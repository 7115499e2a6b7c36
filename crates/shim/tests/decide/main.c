/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * decide PAGE SLOTS EXE WHAT...: what becomes of a request on each file, `-` on everything, `ref:`
 * in front of a name by a descriptor that can only be looked at (O_PATH). A line each: why it is
 * kept or -1, an error, the file system, the class.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int join_page(const void *page, void *slots, const char *exe);
void decide(int fd, int answer[4]);

static void *mapped(const char *path)
{
	int fd = open(path, O_RDWR);
	struct stat is;

	if (fd < 0 || fstat(fd, &is))
		return MAP_FAILED;
	return mmap(NULL, (size_t)is.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

int main(int count, char **words)
{
	void *page, *slots;

	if (count < 4)
		return 2;
	page = mapped(words[1]);
	slots = mapped(words[2]);
	if (page == MAP_FAILED || slots == MAP_FAILED || !join_page(page, slots, words[3]))
		return 3;
	for (int k = 4; k < count; k++) {
		const char *what = words[k];
		int is_ref = !strncmp(what, "ref:", 4), fd = -1, answer[4];

		if (strcmp(what, "-")) {
			fd = open(what + 4 * is_ref,
				  is_ref ? O_PATH | O_NOFOLLOW : O_RDONLY | O_NONBLOCK);
			if (fd < 0)
				return 4;
		}
		decide(fd, answer);
		printf("%d %d %d %d\n", answer[0], answer[1], answer[2], answer[3]);
		close(fd);
	}
	return 0;
}
