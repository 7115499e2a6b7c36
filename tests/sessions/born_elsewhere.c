/* Children that get a seccomp filter of their parent's behind the copy of its memory:
 *
 *     born_elsewhere FOLDER known|unknown CHILDREN
 *
 * A thread clones a process into a network namespace of its own, which the kernel makes when it has
 * copied the memory, and before it copies the filters. Meanwhile a filter is put on all threads. It
 * kills at calls that fsync does not make, and a preloaded library might. The thread is `known` to
 * the libc, or `unknown`: of clone(2). Each child syncs a file. Prints how many of them were born
 * with the filter and how many of these ended badly. Needs root; x86-64.
 */
#define _GNU_SOURCE
#include "kills.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SYNCS = 5, ROUNDS_A_CHILD = 20, NOT_FILTERED = 9, STACK = 1 << 20 };

static int fd, begun, done;
static volatile pid_t child;
static char stack[STACK] __attribute__((aligned(64)));

/* What no wrapper of a library makes: the thread may be unknown to the libc. */
static long call(long nr, long a, long b)
{
	register long c __asm__("r10") = 0, d __asm__("r8") = 0;
	long r;

	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "0"(nr), "D"(a), "S"(b), "d"(0l), "r"(c), "r"(d)
			 : "rcx", "r11", "memory");
	return r;
}

static int has_filter(void)
{
	char text[4096], *line;
	int at = open("/proc/self/status", O_RDONLY);
	long n = read(at, text, sizeof text - 1);

	close(at);
	text[n > 0 ? n : 0] = 0;
	line = strstr(text, "\nSeccomp:");
	return line && strtol(line + 9, NULL, 10) == SECCOMP_MODE_FILTER;
}

static void be_child(void)
{
	int ends_as = has_filter() ? 0 : NOT_FILTERED;

	for (int k = 0; k < SYNCS; k++)
		if (write(fd, "x", 1) != 1 || fsync(fd))
			_exit(1);
	_exit(ends_as);
}

__attribute__((used)) static void fork_elsewhere(void)
{
	pid_t it;

	__atomic_store_n(&begun, 1, __ATOMIC_SEQ_CST);
	it = (pid_t)call(SYS_clone, SIGCHLD | CLONE_NEWNET | CLONE_NEWIPC, 0);
	if (!it)
		be_child();
	child = it;
	__atomic_store_n(&done, 1, __ATOMIC_SEQ_CST);
}

static void *known(void *unused)
{
	(void)unused;
	fork_elsewhere();
	return NULL;
}

__attribute__((used)) static void unknown(void)
{
	fork_elsewhere();
	for (;;)
		call(SYS_exit, 0, 0);
}

static int start_unknown(void)
{
	const long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
			   CLONE_SYSVSEM;
	long r;

	__asm__ volatile("xor %%r10d, %%r10d\n\t"
			 "xor %%r8d, %%r8d\n\t"
			 "syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "call unknown\n"
			 "1:"
			 : "=a"(r)
			 : "0"((long)SYS_clone), "D"(flags), "S"(stack + STACK - 64), "d"(0l)
			 : "rcx", "r11", "r10", "r8", "memory");
	return r < 0;
}

/* One process that restricts itself: 0 no child with the filter, 1 one that ended well, 2 badly. */
static int round_of(int round, int is_known)
{
	struct timespec pause = { 0, round % 16 * 250000 };
	pthread_t thread;
	int status;

	/* What is in memory already is not waited for while a fork copies the rest. */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || write(fd, "x", 1) != 1 || fsync(fd))
		return 3;
	if (is_known ? pthread_create(&thread, NULL, known, NULL) : start_unknown())
		return 4;
	while (!__atomic_load_n(&begun, __ATOMIC_SEQ_CST))
		;
	nanosleep(&pause, NULL);
	if (filters(SECCOMP_FILTER_FLAG_TSYNC))
		return 5;
	while (!__atomic_load_n(&done, __ATOMIC_SEQ_CST))
		;
	if (child <= 0 || waitpid(child, &status, 0) != child)
		return 6;
	if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_FILTERED)
		return 0;
	return status ? 2 : 1;
}

int main(int count, char **words)
{
	int wanted, is_known, filtered = 0, bad = 0;

	if (count != 4 || chdir(words[1]))
		return 2;
	is_known = !strcmp(words[2], "known");
	wanted = atoi(words[3]);
	fd = open("file", O_CREAT | O_WRONLY | O_APPEND, 0600);
	if (fd < 0 || write(fd, "x", 1) != 1 || fsync(fd))
		return 3;
	for (int round = 0; filtered < wanted && round < wanted * ROUNDS_A_CHILD; round++) {
		int status = -1;
		pid_t it = fork();

		if (!it)
			_exit(round_of(round, is_known));
		if (waitpid(it, &status, 0) != it || !WIFEXITED(status) || WEXITSTATUS(status) > 2)
			return 40 + WEXITSTATUS(status);
		filtered += WEXITSTATUS(status) > 0;
		bad += WEXITSTATUS(status) == 2;
	}
	printf("%d born with it, %d ended badly\n", filtered, bad);
	return bad ? 1 : 0;
}
