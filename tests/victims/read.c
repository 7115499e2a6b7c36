/* Every call that reads, from descriptors of every kind, with good and bad arguments. */
#include "descriptor.h"

#include <sys/resource.h>

static char bytes[64];
static volatile int too_many = 1025;
static struct iovec three[] = { { bytes, 7 }, { bytes + 20, 0 }, { bytes + 30, 11 } };

/* What is where nothing was read to must be as it was. */
static void show_bytes(long n)
{
	unsigned sum = 0;

	for (unsigned i = 0; i < sizeof bytes; i++)
		sum = sum * 31 + (unsigned char)bytes[i];
	printf("  %ld, sum %08x\n", n, sum);
	memset(bytes, '.', sizeof bytes);
}

#define READ(call, argument, expression)                   \
	do {                                               \
		errno = UNTOUCHED;                         \
		long n_ = (long)(expression);              \
		show(call, argument, n_, errno);           \
		if (strcmp(argument, "/dev/urandom"))      \
			show_bytes(n_);                    \
		else                                       \
			memset(bytes, '.', sizeof bytes);  \
	} while (0)

static void plain(const char *name, int fd)
{
	READ("read 23", name, read(fd, bytes, 23));
	READ("read 0", name, read(fd, bytes, 0));
	READ("read nowhere", name, read(fd, NOWHERE, 23));
	READ("read NULL", name, read(fd, NULL, 23));
	READ("read too much", name, read(fd, NOWHERE, SIZE_MAX));
	READ("pread", name, pread(fd, bytes, 23, 3));
	READ("pread -1", name, pread(fd, bytes, 23, -1));
	READ("pread nowhere", name, pread(fd, NOWHERE, 23, 0));
	READ("pread behind the end", name, pread(fd, bytes, 23, 1 << 30));
#ifdef __GLIBC__
	READ("pread64", name, pread64(fd, bytes, 23, 5));
	READ("pread64 behind the end", name, pread64(fd, bytes, 23, 1ll << 33));
	READ("pread64 -1", name, pread64(fd, bytes, 23, INT64_MIN));
#endif
}

static void vectors(const char *name, int fd)
{
	READ("readv", name, readv(fd, three, 3));
	READ("readv 0", name, readv(fd, three, 0));
	READ("readv -1", name, readv(fd, three, -1));
	READ("readv 1025", name, readv(fd, three, too_many));
	READ("readv nowhere", name, readv(fd, NOWHERE, 3));
	READ("preadv", name, preadv(fd, three, 3, 11));
	READ("preadv -1", name, preadv(fd, three, 3, -1));
	READ("preadv -2", name, preadv(fd, three, 3, -2));
#ifdef __GLIBC__
	READ("preadv64", name, preadv64(fd, three, 3, 13));
	READ("preadv64, far", name, preadv64(fd, three, 3, 1ll << 33));
	READ("preadv2", name, preadv2(fd, three, 3, 17, 0));
	READ("preadv2 at the offset", name, preadv2(fd, three, 3, -1, 0));
	READ("preadv2, bad flags", name, preadv2(fd, three, 3, 17, 1 << 30));
	READ("preadv64v2", name, preadv64v2(fd, three, 3, 19, 0));
	READ("preadv64v2, far", name, preadv64v2(fd, three, 3, 1ll << 33, 0));
#endif
}

static void by_number(const char *name, int fd)
{
	READ("syscall read", name, syscall(SYS_read, fd, bytes, 23));
	READ("syscall readv", name, syscall(SYS_readv, fd, three, 3));
	READ("syscall read nowhere", name, syscall(SYS_read, fd, NOWHERE, 23));
#if __SIZEOF_LONG__ == 8
	READ("syscall pread64", name, syscall(SYS_pread64, fd, bytes, 23, 5l));
	READ("syscall preadv", name, syscall(SYS_preadv, fd, three, 3, 5l, 0l));
#else
	READ("syscall pread64", name, syscall(SYS_pread64, fd, bytes, 23, 5, 0));
	READ("syscall preadv", name, syscall(SYS_preadv, fd, three, 3, 5, 0));
#endif
}

#ifdef __GLIBC__
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);

/* A fortified read that has too little room ends the program. */
static void misuse(int fd, int which)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = must(fork(), "fork");
	if (child == 0) {
		if (which == 0)
			__read_chk(fd, bytes, sizeof bytes + 1, sizeof bytes);
		else if (which == 1)
			__pread_chk(fd, bytes, sizeof bytes + 1, 0, sizeof bytes);
		else
			__pread64_chk(fd, bytes, sizeof bytes + 1, 0, sizeof bytes);
		_exit(0);
	}
	must(waitpid(child, &status, 0), "waitpid");
	printf("too little room: %s %d\n", WIFSIGNALED(status) ? "killed by" : "ended with",
	       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void fortified(int fd)
{
	lseek(fd, 0, SEEK_SET);
	READ("__read_chk", "file", __read_chk(fd, bytes, 23, sizeof bytes));
	READ("__read_chk", "closed", __read_chk(999, bytes, 23, sizeof bytes));
	READ("__pread_chk", "file", __pread_chk(fd, bytes, 23, 2, sizeof bytes));
	READ("__pread64_chk", "file", __pread64_chk(fd, bytes, sizeof bytes, 2, sizeof bytes));
	for (int which = 0; which < 3; which++)
		misuse(fd, which);
}
#else
static void fortified(int fd) { (void)fd; }
#endif

/* More than a histogram's place can tell apart, from more descriptors than are kept in mind. */
static void many(void)
{
	struct rlimit few;
	int fd, high, k, sum = 0;

	fd = make_file("many", O_RDONLY);
	for (k = 0; k < 3000; k++)
		sum += (int)pread(fd, bytes, 1, k);
	printf("3000 bytes one by one: %d\n", sum);
	must(getrlimit(RLIMIT_NOFILE, &few), "getrlimit");
	high = few.rlim_cur > 5000 ? fcntl(fd, F_DUPFD, 4999) : dup(fd);
	READ("read", "a high descriptor", read(high, bytes, 3));
	CALL("close", "a high descriptor", close(high));
	close(fd);
}

int main(int count, char **arguments)
{
	int fd;

	begin(count, arguments);
	memset(bytes, '.', sizeof bytes);
	fd = make_file("data", O_RDWR);
	for (int k = 0; k < 100; k++)
		must((int)write(fd, "0123456789abcdefghijklmnopqrstuvwxyz", 36), "write");
	lseek(fd, 0, SEEK_SET);
	plain("data", fd), vectors("data", fd), by_number("data", fd), fortified(fd);
	look_at("data", fd);
	open_kinds();
	EACH_KIND(k) {
		/* Nothing may wait. */
		if (fcntl(k->fd, F_GETFL) >= 0 && !(fcntl(k->fd, F_GETFL) & O_PATH))
			fcntl(k->fd, F_SETFL, fcntl(k->fd, F_GETFL) | O_NONBLOCK);
		plain(k->name, k->fd), vectors(k->name, k->fd), by_number(k->name, k->fd);
	}
	many();
	return 0;
}
