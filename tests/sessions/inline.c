/* Sync requests by instructions of its own, which nothing but the kernel sees:
 *
 *   inline DIRECTORY REQUESTS
 *
 * As a 64-bit program it makes every second one as a 32-bit program would (int $0x80), and tries
 * x32's. It ends with status 1 when a request fails, 2 when a bad one does not fail as it should.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __x86_64__
static long enter(long number, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	long r;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return r;
}
#endif

static long enter_as_32(long number, long a)
{
	long r;

	__asm__ volatile("int $0x80" : "=a"(r) : "0"(number), "b"(a), "c"(0), "d"(0) : "memory");
	return (int)r;
}

static int request(int fd, long i)
{
#ifdef __x86_64__
	if (i % 2 == 0)
		return (int)enter(SYS_fsync, fd, 0, 0, 0);
#else
	(void)i;
#endif
	return (int)enter_as_32(118, fd);
}

/* What the kernel says of these goes for every dial. */
static int is_refused(int fd)
{
	int pipes[2];

	if (pipe(pipes) || request(-1, 0) != -EBADF || request(-1, 1) != -EBADF ||
	    request(pipes[0], 0) != -EINVAL || request(pipes[1], 1) != -EINVAL)
		return 0;
#ifdef __x86_64__
	long x32 = enter(0x40000000 | SYS_fsync, fd, 0, 0, 0);

	if (x32 && x32 != -ENOSYS)
		return 0;
	char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (enter(SYS_msync, (long)map + 1, 4096, MS_SYNC, 0) != -EINVAL ||
	    enter(SYS_msync, (long)map, 4096, MS_SYNC | MS_ASYNC, 0) != -EINVAL ||
	    enter(SYS_msync, (long)map, 4096, MS_SYNC, 0) != 0 ||
	    enter(SYS_msync, 4096, 4096, MS_SYNC, 0) != -ENOMEM)
		return 0;
#else
	(void)fd;
#endif
	return 1;
}

int main(int count, char **arguments)
{
	long n = count > 2 ? atol(arguments[2]) : 0;
	int fd;

	if (count < 3 || chdir(arguments[1]))
		return 3;
	fd = open("inline", O_CREAT | O_RDWR, 0600);
	if (fd < 0 || write(fd, "inline", 6) != 6)
		return 3;
	/* Right behind a call of the library's, which leaves nothing that would let them pass. */
	fd = open("inline", O_RDWR);
	for (long i = 0; i < n; i++)
		if (request(fd, i))
			return 1;
	return is_refused(fd) ? 0 : 2;
}
