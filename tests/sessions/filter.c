/* A victim that puts a seccomp filter on itself:
 *
 *     filter DIRECTORY prctl|seccomp|exec|tried|both|forks REQUESTS
 *
 * The filter kills at calls that the libc's fsync does not make, and a preloaded library might:
 * sync_file_range, statx, futex, readlinkat, clock_gettime, getpid, geteuid, connect, and others.
 * With `exec` it executes itself behind the filter, which must then let ld.so work. With `tried` it
 * makes only such calls as the kernel refuses, as libseccomp's constructor does; with `both` first
 * these, and the filter in the middle of its requests; with `forks` half of the requests are made
 * by forty children, forked while another thread makes such calls.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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

/* What stands of these: none is to. */
static int tried(void)
{
	return !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) ||
	       !syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) ||
	       !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) ||
	       !prctl(PR_SET_TSC, 23, 0, 0, 0);
}

static int syncs(int requests)
{
	int fd = open("file", O_CREAT | O_RDWR, 0600);

	for (int i = requests; i > 0; i--)
		if (write(fd, "a", 1) != 1 || fsync(fd))
			return 0;
	close(fd);
	return 1;
}

static void *goes_on_trying(void *stops)
{
	while (!__atomic_load_n((int *)stops, __ATOMIC_SEQ_CST))
		if (tried())
			_exit(5);
	return NULL;
}

static int forks(int requests)
{
	int stops = 0, status, all = 0;
	pthread_t thread;

	if (!syncs(requests / 2) || pthread_create(&thread, NULL, goes_on_trying, &stops))
		return 6;
	for (int i = 0; i < 40; i++) {
		if (!fork())
			_exit(!syncs(requests / 80));
		wait(&status);
		all |= status;
	}
	__atomic_store_n(&stops, 1, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
	return all ? 7 : 0;
}

int main(int count, char **arguments)
{
	const char *way = arguments[2];
	int fd, requests, both = !strcmp(way, "both");

	if (count != 4 || chdir(arguments[1]))
		return 2;
	requests = atoi(arguments[3]);
	if (!strcmp(way, "forks"))
		return forks(requests);
	if (!strcmp(way, "tried") || both ? tried() :
	    strcmp(way, "filtered")	  ? install(!strcmp(way, "seccomp")) :
					    0)
		return 3;
	if (!strcmp(way, "exec"))
		return execl("/proc/self/exe", "filter", ".", "filtered", arguments[3], NULL);
	fd = open("file", O_CREAT | O_RDWR, 0600);
	for (int i = requests; i > 0; i--) {
		if (both && i == requests / 2 && install(1))
			return 3;
		if (write(fd, "a", 1) != 1 || fsync(fd))
			return 4;
	}
	puts("alive");
	return 0;
}
