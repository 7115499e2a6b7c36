/* A victim that does what it is told, one line of stdin at a time, and says one line for each.
 *
 *   sync NAME       appends a byte to a file in DIRECTORY, which stays open, and syncs it:
 *                   `sync 0`, or `sync ERRNO`; whether the write failed is not told
 *   open NAME FLAGS opens a file to append, with FLAGS beside: `open FLAGS`, as F_GETFL has them
 *                   without O_LARGEFILE
 *   put NAME        appends a byte to what was opened so, without a sync: `put 0`, or `put ERRNO`
 *   flag NAME       the same by pwritev2 with RWF_DSYNC: `flag 0`, or `flag ERRNO`
 *   own NAME        syncs it by an instruction of its own, which is no libc's: `own 0`, or -ERRNO
 *   plain NAME      the same without a flag: `plain 0`, or `plain ERRNO`
 *   close NAME      closes it: `close 0`
 *   write NAME MIB  writes that much, without a sync: `write 0`
 *   pid             `pid N`
 *   signal NAME     sends itself SIGSTOP, SIGTSTP or SIGKILL
 *   hide            hides its memory from others of its user: `hide 0`, or `hide ERRNO`
 *   filter          puts a seccomp filter on itself that lets everything pass: `filter 0`
 *   leave           has another thread go on, with a table of descriptors of its own; the first one
 *                   closes what it has opened: `leave 0`
 *   again           executes itself, which says "ready" once more
 *   exit N          ends
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#if __has_include(<linux/filter.h>) /* not for musl */
#include <linux/filter.h>
#include <linux/seccomp.h>
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 8

static struct { char name[64]; int fd; } file[FILES];

static int opened_with(const char *name, int flags)
{
	for (int i = 0; i < FILES; i++) {
		if (!strcmp(file[i].name, name))
			return file[i].fd;
		if (file[i].name[0])
			continue;
		snprintf(file[i].name, sizeof file[i].name, "%s", name);
		file[i].fd = open(name, O_CREAT | O_WRONLY | O_APPEND | flags, 0666);
		return file[i].fd;
	}
	return -1;
}

static int opened(const char *name) { return opened_with(name, 0); }

static int open_with(const char *name, int flags)
{
	return fcntl(opened_with(name, flags), F_GETFL) & ~0100000;
}

static int put(const char *name) { return write(opened(name), "a", 1) == 1 ? 0 : errno; }

static int put_flagged(const char *name, int flags)
{
	struct iovec byte = { (void *)"a", 1 };

	/* At the descriptor's own place. */
	return syscall(SYS_pwritev2, opened(name), &byte, 1, -1l, -1l, flags) == 1 ? 0 : errno;
}

static int sync_by_itself(int fd)
{
	long r;

#ifdef __x86_64__
	__asm__ volatile("syscall" : "=a"(r) : "0"(SYS_fsync), "D"(fd) : "rcx", "r11", "memory");
#else
	__asm__ volatile("int $0x80" : "=a"(r) : "0"(SYS_fsync), "b"(fd) : "memory");
#endif
	return (int)r;
}

static int append_and_sync(const char *name)
{
	int fd = opened(name);
	ssize_t written = write(fd, "a", 1);

	(void)written;
	return fsync(fd) ? errno : 0;
}

static int write_much(const char *name, int mib)
{
	static char bytes[1 << 20];
	int fd = open(name, O_CREAT | O_WRONLY | O_APPEND, 0666), error = fd < 0 ? errno : 0;

	memset(bytes, 'a', sizeof bytes);
	for (; !error && mib > 0; mib--)
		if (write(fd, bytes, sizeof bytes) < 0)
			error = errno;
	if (fd >= 0)
		close(fd);
	return error;
}

static int filter_all(void)
{
#ifndef SECCOMP_MODE_FILTER
	return ENOSYS;
#else
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog filter = { 1, &allow };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return errno;
	return 0;
#endif
}

static void send_signal(const char *name)
{
	int number = !strcmp(name, "STOP") ? SIGSTOP : !strcmp(name, "TSTP") ? SIGTSTP : SIGKILL;

	kill(getpid(), number);
}

static char **itself; /* its arguments */
static void serve(void);

/* Whose table is whose, and whose turn it is. */
static pthread_barrier_t between;

static void *go_on(void *nothing)
{
	if (unshare(CLONE_FILES))
		_exit(2);
	pthread_barrier_wait(&between);
	pthread_barrier_wait(&between);
	puts("leave 0");
	serve();
	return nothing;
}

static void leave(void)
{
	pthread_t thread;

	pthread_barrier_init(&between, NULL, 2);
	if (pthread_create(&thread, NULL, go_on, NULL))
		_exit(2);
	pthread_barrier_wait(&between);
	for (int i = 0; i < FILES && file[i].name[0]; i++)
		close(file[i].fd);
	pthread_barrier_wait(&between);
	pthread_join(thread, NULL);
}

static void serve(void)
{
	char line[4096], word[16], name[1024];
	int number;

	while (fgets(line, sizeof line, stdin)) {
		number = 0;
		name[0] = 0;
		if (sscanf(line, "%15s %1023s %d", word, name, &number) < 1)
			continue;
		if (!strcmp(word, "sync"))
			printf("sync %d\n", append_and_sync(name));
		else if (!strcmp(word, "open"))
			printf("open %d\n", open_with(name, number));
		else if (!strcmp(word, "flag"))
			printf("flag %d\n", put_flagged(name, 2 /* RWF_DSYNC */));
		else if (!strcmp(word, "plain"))
			printf("plain %d\n", put_flagged(name, 0));
		else if (!strcmp(word, "own"))
			printf("own %d\n", sync_by_itself(opened(name)));
		else if (!strcmp(word, "hide"))
			printf("hide %d\n", prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) ? errno : 0);
		else if (!strcmp(word, "close"))
			printf("close %d\n", close(opened(name)));
		else if (!strcmp(word, "put"))
			printf("put %d\n", put(name));
		else if (!strcmp(word, "write"))
			printf("write %d\n", write_much(name, number));
		else if (!strcmp(word, "pid"))
			printf("pid %d\n", (int)getpid());
		else if (!strcmp(word, "signal"))
			send_signal(name);
		else if (!strcmp(word, "filter"))
			printf("filter %d\n", filter_all());
		else if (!strcmp(word, "leave"))
			leave();
		else if (!strcmp(word, "again"))
			execv("/proc/self/exe", itself);
		else if (!strcmp(word, "exit"))
			exit(atoi(name));
	}
	exit(0);
}

int main(int count, char **arguments)
{
	if (count < 2 || chdir(arguments[1]))
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	itself = arguments;
	serve();
}
