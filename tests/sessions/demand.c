/* A victim that does what it is told, one line of stdin at a time, and says one line for each.
 *
 *   sync NAME       appends a byte to a file in DIRECTORY, which stays open, and syncs it:
 *                   `sync 0`, or `sync ERRNO`; whether the write failed is not told
 *   write NAME MIB  writes that much, without a sync: `write 0`
 *   pid             `pid N`
 *   signal NAME     sends itself SIGSTOP, SIGTSTP or SIGKILL
 *   filter          puts a seccomp filter on itself that lets everything pass: `filter 0`
 *   exit N          ends
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define FILES 8

static int opened(const char *name)
{
	static struct { char name[64]; int fd; } file[FILES];

	for (int i = 0; i < FILES; i++) {
		if (!strcmp(file[i].name, name))
			return file[i].fd;
		if (file[i].name[0])
			continue;
		snprintf(file[i].name, sizeof file[i].name, "%s", name);
		file[i].fd = open(name, O_CREAT | O_WRONLY | O_APPEND, 0666);
		return file[i].fd;
	}
	return -1;
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
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog filter = { 1, &allow };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return errno;
	return 0;
}

static void send_signal(const char *name)
{
	int number = !strcmp(name, "STOP") ? SIGSTOP : !strcmp(name, "TSTP") ? SIGTSTP : SIGKILL;

	kill(getpid(), number);
}

int main(int count, char **arguments)
{
	char line[4096], word[16], name[1024];
	int number;

	if (count < 2 || chdir(arguments[1]))
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof line, stdin)) {
		number = 0;
		name[0] = 0;
		if (sscanf(line, "%15s %1023s %d", word, name, &number) < 1)
			continue;
		if (!strcmp(word, "sync"))
			printf("sync %d\n", append_and_sync(name));
		else if (!strcmp(word, "write"))
			printf("write %d\n", write_much(name, number));
		else if (!strcmp(word, "pid"))
			printf("pid %d\n", (int)getpid());
		else if (!strcmp(word, "signal"))
			send_signal(name);
		else if (!strcmp(word, "filter"))
			printf("filter %d\n", filter_all());
		else if (!strcmp(word, "exit"))
			return atoi(name);
	}
	return 0;
}
