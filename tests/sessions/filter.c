/* A victim that puts a seccomp filter on itself: filter DIRECTORY prctl|seccomp|exec REQUESTS
 *
 * The filter kills at calls that the libc's fsync does not make, and a preloaded library might:
 * sync_file_range, statx, futex, readlinkat, clock_gettime, getpid, geteuid, connect, and others.
 * With `exec` it executes itself behind the filter, which must then let ld.so work.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KILLED(call)                                                   \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1),         \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static struct sock_filter program[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	KILLED(sync_file_range),
	KILLED(statx),
	KILLED(syncfs),
	KILLED(msync),
	KILLED(socket),
	KILLED(connect),
	KILLED(clock_gettime),
	KILLED(getpid),
	KILLED(geteuid),
	KILLED(kill),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

static int install(int by_number)
{
	struct sock_fprog filter = { sizeof program / sizeof *program, program };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	if (by_number)
		return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
}

int main(int count, char **arguments)
{
	int fd;

	if (count != 4 || chdir(arguments[1]))
		return 2;
	if (strcmp(arguments[2], "filtered") && install(!strcmp(arguments[2], "seccomp")))
		return 3;
	if (!strcmp(arguments[2], "exec"))
		return execl("/proc/self/exe", "filter", ".", "filtered", arguments[3], NULL);
	fd = open("file", O_CREAT | O_RDWR, 0600);
	for (int i = atoi(arguments[3]); i > 0; i--)
		if (write(fd, "a", 1) != 1 || fsync(fd))
			return 4;
	puts("alive");
	return 0;
}
