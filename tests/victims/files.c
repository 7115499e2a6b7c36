/* Calls on files, a known number of each, between others on what is no file: for tests that count.
 * `files DIRECTORY few` makes each of them once or twice, `files DIRECTORY` many times, also from
 * threads and a child. */
#include "victim.h"

#include <pthread.h>

static char bytes[64];
static struct iovec two[] = { { bytes, 7 }, { bytes + 30, 11 } };
static int shared;

static void few(void)
{
	int fd;

	CALL("open", "one", fd = open(in_work("one"), O_CREAT | O_RDWR, 0600));
	CALL("write", "one", write(fd, "bytes", 5));
	CALL("pread", "one", pread(fd, bytes, 5, 0));
	CALL("close", "one", close(fd));
	CALL("rename", "two", rename(in_work("one"), in_work("two")));
	must(chdir(work), "chdir");
	CALL("open", "relative", fd = open("two", O_RDONLY));
	CALL("readv", "two", readv(fd, two, 2));
	CALL("close", "two", close(fd));
}

static void write_files(void)
{
	char name[32];

	for (int k = 0; k < 150; k++) {
		int fd;

		snprintf(name, sizeof name, "file %d", k);
		fd = must(open(in_work(name), O_CREAT | O_RDWR, 0600), name);
		must((int)write(fd, bytes, 23), "write");
		must((int)writev(fd, two, 2), "writev");
		must((int)pwrite(fd, bytes, 23, 100), "pwrite");
		must((int)pwritev(fd, two, 2, 200), "pwritev");
		close(fd);
	}
}

static void read_files(void)
{
	char name[32];

	for (int k = 0; k < 150; k++) {
		int fd;

		snprintf(name, sizeof name, "file %d", k);
		fd = must(openat(AT_FDCWD, in_work(name), O_RDONLY), name);
		while (read(fd, bytes, 23) > 0)
			;
		must((int)readv(fd, two, 2), "readv");
		must((int)pread(fd, bytes, 23, 3), "pread");
		must((int)preadv(fd, two, 2, 3), "preadv");
		must((int)syscall(SYS_read, fd, bytes, 1), "syscall");
		write(fd, bytes, 1);
		close(fd);
	}
}

static void rename_files(void)
{
	char name[32];

	for (int k = 0; k < 40; k++) {
		snprintf(name, sizeof name, "file %d", k);
		must(rename(in_work(name), in_work("renamed")), "rename");
		must(renameat(AT_FDCWD, in_work("renamed"), AT_FDCWD, in_work(name)), "renameat");
		rename(in_work("missing"), in_work("renamed"));
		open(in_work("missing"), O_RDONLY);
	}
}

/* None of these is a call on a file. */
static void use_others(void)
{
	for (int k = 0; k < 40; k++) {
		int null = must(open("/dev/null", O_RDWR), "null"), pair[2];
		int counter = must(eventfd(1, 0), "eventfd");

		must(pipe(pair), "pipe");
		write(pair[1], bytes, 23);
		read(pair[0], bytes, 23);
		close(pair[0]), close(pair[1]);
		must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
		write(pair[1], bytes, 23);
		read(pair[0], bytes, 23);
		close(pair[0]), close(pair[1]);
		write(null, bytes, 23);
		read(null, bytes, 23);
		read(counter, bytes, 8);
		close(null), close(counter), close(999);
		read(999, bytes, 1);
		write(-1, bytes, 1);
	}
}

static void *read_on(void *unused)
{
	char byte;

	for (int k = 0; k < 500; k++)
		pread(shared, &byte, 1, k);
	return unused;
}

static void from_threads_and_a_child(void)
{
	pthread_t threads[4];
	pid_t child;
	int k;

	shared = make_file("shared", O_RDONLY);
	for (k = 0; k < 4; k++)
		must(-pthread_create(&threads[k], NULL, read_on, NULL), "pthread_create");
	for (k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	child = must(fork(), "fork");
	if (child == 0) {
		read_on(NULL);
		close(shared);
		_exit(0);
	}
	must(waitpid(child, NULL, 0), "waitpid");
	close(shared);
}

int main(int count, char **arguments)
{
	begin(count, arguments);
	if (count > 2) {
		few();
		return 0;
	}
	write_files();
	read_files();
	use_others();
	rename_files();
	from_threads_and_a_child();
	printf("done\n");
	return 0;
}
