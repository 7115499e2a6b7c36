/* What the victims share: one line a call, a set of descriptors of every kind, the warm-up.
 *
 * A victim makes one kind of sync request in every way that a program can, right and wrong, and
 * prints what it got: `call(argument) = result errno=E`. It knows nothing of synclater: the run
 * without it is the oracle. So nothing that differs between two runs may be printed.
 *
 * errno is 77 before each call, which no call here can set: 77 behind it means untouched.
 */
#ifndef VICTIM_H
#define VICTIM_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UNTOUCHED 77
#define SYNCS     (O_SYNC | O_DSYNC)

/* Numbers that old headers lack; the same on every machine that we build for. */
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define RWF_DSYNC_ 2
#define RWF_SYNC_  4

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* An address that is never mapped. */
#define NOWHERE ((void *)(intptr_t)-4096)

static const char *work; /* the directory that is ours */

static inline void show(const char *call, const char *argument, long result, int error)
{
	printf("%s(%s) = %ld errno=%d\n", call, argument, result, error);
}

/* The arguments of EXPRESSION may be computed; only what it does to errno is looked at. */
#define CALL(call, argument, expression)                   \
	do {                                               \
		errno = UNTOUCHED;                         \
		long result_ = (long)(expression);         \
		show(call, argument, result_, errno);      \
	} while (0)

static inline void die(const char *what)
{
	printf("the victim cannot go on: %s: %s\n", what, strerror(errno));
	exit(99);
}

static inline int must(int result, const char *what)
{
	if (result < 0)
		die(what);
	return result;
}

/* A path in the work directory; four of them may be in use at a time. */
static inline const char *in_work(const char *name)
{
	static char path[4][PATH_MAX];
	static unsigned turn;
	char *p = path[__atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED) % 4];

	snprintf(p, PATH_MAX, "%s/%s", work, name);
	return p;
}

static inline int make_file(const char *name, int flags)
{
	int fd = must(open(in_work(name), O_CREAT | O_RDWR, 0600), name);

	must(ftruncate(fd, 8192), "ftruncate");
	close(fd);
	return must(open(in_work(name), flags), name);
}

/* The number that the next new descriptor must get. */
static inline int lowest_free(void)
{
	int fd = must(dup(0), "dup");

	close(fd);
	return fd;
}

/* Shows a call that makes a descriptor, without its number, and returns it. */
static inline int show_fd(const char *call, const char *argument, int expected, int fd, int error)
{
	if (fd < 0)
		printf("%s(%s) = %d errno=%d\n", call, argument, fd, error);
	else
		printf("%s(%s) = %s errno=%d\n", call, argument,
		       fd == expected ? "the lowest free" : "NOT the lowest free", error);
	return fd;
}

/* GNU C: the value of the whole is the descriptor. */
#define CALL_FD(call, argument, expression)                                 \
	__extension__({                                                     \
		int lowest_ = lowest_free();                                \
		errno = UNTOUCHED;                                          \
		int fd_ = (int)(expression);                                \
		int error_ = errno;                                         \
		show_fd(call, argument, lowest_, fd_, error_);              \
	})

/* --- Descriptors of every kind ---------------------------------------------------------------- */

struct kind {
	const char *name;
	int fd;
};

#define KINDS_MAX 48
static struct kind kinds[KINDS_MAX];
static unsigned kind_count;

static inline void add_kind(const char *name, int fd)
{
	if (kind_count == KINDS_MAX || (fd < 0 && errno != 0))
		die(name);
	kinds[kind_count++] = (struct kind){ name, fd };
}

static inline void add_opened(const char *name, const char *path, int flags)
{
	add_kind(name, must(open(path, flags, 0600), name));
}

static inline void open_files(void)
{
	add_kind("file", make_file("file", O_RDWR));
	add_kind("read-only file", make_file("file", O_RDONLY));
	add_kind("write-only file", make_file("file", O_WRONLY));
	add_kind("appending file", make_file("file", O_WRONLY | O_APPEND));
	add_opened("directory", work, O_RDONLY | O_DIRECTORY);
	add_opened("unlinked file", in_work("gone"), O_CREAT | O_RDWR);
	unlink(in_work("gone"));
	add_opened("O_PATH file", in_work("file"), O_PATH);
	add_opened("O_PATH directory", work, O_PATH | O_DIRECTORY);
	symlink("file", in_work("link"));
	add_opened("O_PATH symlink", in_work("link"), O_PATH | O_NOFOLLOW);
	add_kind("memfd", must((int)syscall(SYS_memfd_create, "m", 0), "memfd"));
}

static inline void open_channels(void)
{
	int pair[2];

	must(pipe(pair), "pipe");
	add_kind("pipe to read", pair[0]);
	add_kind("pipe to write", pair[1]);
	mkfifo(in_work("fifo"), 0600);
	add_opened("fifo", in_work("fifo"), O_RDWR);
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
	add_kind("unix socket", pair[0]);
	add_kind("inet socket", must(socket(AF_INET, SOCK_STREAM, 0), "socket"));
}

static inline void open_devices(void)
{
	add_opened("/dev/null", "/dev/null", O_RDWR);
	add_opened("/dev/zero", "/dev/zero", O_RDWR);
	add_opened("/dev/full", "/dev/full", O_RDWR);
	add_opened("/dev/urandom", "/dev/urandom", O_RDONLY);
	add_opened("/dev/ptmx", "/dev/ptmx", O_RDWR | O_NOCTTY);
}

/* Files without a file system of their own, and descriptors without a file. */
static inline void open_pseudo_files(void)
{
	add_kind("eventfd", must(eventfd(0, 0), "eventfd"));
	add_kind("epoll", must(epoll_create1(0), "epoll"));
	add_kind("timerfd", must(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd"));
	add_kind("inotify", must(inotify_init1(0), "inotify"));
	add_kind("pidfd", must((int)syscall(434 /* pidfd_open */, getpid(), 0), "pidfd"));
	add_opened("/proc/self/status", "/proc/self/status", O_RDONLY);
	add_opened("/proc/self/comm", "/proc/self/comm", O_RDWR);
	add_opened("/proc/self/ns/mnt", "/proc/self/ns/mnt", O_RDONLY);
	add_opened("/proc", "/proc", O_RDONLY | O_DIRECTORY);
	add_opened("/sys", "/sys", O_RDONLY | O_DIRECTORY);
	add_opened("/sys/kernel/uevent_seqnum", "/sys/kernel/uevent_seqnum", O_RDONLY);
}

/* Numbers that name no open file. */
static inline void add_bad_numbers(void)
{
	errno = 0;
	add_kind("closed", 999);
	add_kind("-1", -1);
	add_kind("AT_FDCWD", AT_FDCWD);
	add_kind("INT_MIN", INT_MIN);
	add_kind("INT_MAX", INT_MAX);
}

static inline void open_kinds(void)
{
	open_files();
	open_channels();
	open_devices();
	add_bad_numbers();
}

#define EACH_KIND(k) for (const struct kind *k = kinds; k < kinds + kind_count; k++)

/* --- Begin ------------------------------------------------------------------------------------ */

static inline void nap_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/* Whether there is a regular file below DIRECTORY, at most three levels down. */
static inline int holds_a_file(const char *directory, int levels)
{
	DIR *d = opendir(directory);
	struct dirent *e;
	int found = 0;

	while (d && !found && (e = readdir(d))) {
		char path[PATH_MAX + 256];
		struct stat s;

		snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 2, directory, e->d_name);
		if (e->d_name[0] == '.' || lstat(path, &s))
			continue;
		found = S_ISREG(s.st_mode) ||
			(S_ISDIR(s.st_mode) && levels && holds_a_file(path, levels - 1));
	}
	if (d)
		closedir(d);
	return found;
}

#define WARM_MS_MAX   5000
#define WARM_ROUNDS   23 /* after the entry was seen, until its reader will have seen it too */
#define WARM_ROUND_MS 20

/* Syncs until the session's entry is in the directory named by $WARM, then marks the place in a
 * trace by a line on stderr: from there on every request should be put off. */
static inline void warm_up(void)
{
	const char *entries = getenv("WARM");
	int fd, ms, seen = 0;

	if (!entries)
		return;
	fd = must(open(in_work("warm"), O_CREAT | O_RDWR, 0600), "warm");
	for (ms = 0; ms < WARM_MS_MAX && seen < WARM_ROUNDS; ms += WARM_ROUND_MS) {
		must((int)write(fd, "w", 1), "write");
		fsync(fd);
		sync();
		seen += seen || holds_a_file(entries, 2);
		nap_ms(WARM_ROUND_MS);
	}
	close(fd);
	unlink(in_work("warm"));
	unsetenv("WARM");
	must((int)write(2, seen == WARM_ROUNDS ? "WARM\n" : "COLD\n", 5), "stderr");
}

static inline void begin(int count, char **arguments)
{
	if (count < 2) {
		fprintf(stderr, "usage: %s DIRECTORY\n", arguments[0]);
		exit(2);
	}
	work = arguments[1];
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	if (getenv("STOP")) { /* it is attached now */
		unsetenv("STOP");
		raise(SIGSTOP);
	}
	warm_up();
}

#endif
