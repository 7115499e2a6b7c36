/* Children that get a seccomp filter of their parent's while they are forked:
 *
 *     born_filtered FOLDER handler|thread CHILDREN
 *
 * With `handler` the handler of a signal forks that arrives when the filter stands and the call
 * that put it in has not come back. With `thread` another thread forks, which takes long, since the
 * process is large, while the filter is put on all threads. The filter kills at calls that fsync
 * does not make, and a preloaded library might. Each child syncs a file. Prints how many of them
 * were forked and how many of these ended badly.
 */
#define _GNU_SOURCE
#include "kills.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { SYNCS = 5, LARGE = 256 << 20, ROUNDS_A_CHILD = 50 };

static int fd, large, ends;
static volatile pid_t child;
static pthread_t us;

static void be_child(void)
{
	for (int k = 0; k < SYNCS; k++)
		if (write(fd, "x", 1) != 1 || fsync(fd))
			_exit(1);
	_exit(0);
}

/* Whether a call has just come back with 0 where the signal was taken. */
static int is_behind_call(const ucontext_t *at)
{
	const unsigned char *code = (const unsigned char *)at->uc_mcontext.gregs[REG_RIP];

	return code[-2] == 0x0f && code[-1] == 0x05 && !at->uc_mcontext.gregs[REG_RAX];
}

static void fork_here(int signal, siginfo_t *info, void *at)
{
	(void)signal, (void)info;
	if (child || !is_behind_call(at))
		return;
	child = fork();
	if (!child)
		be_child();
}

static void *send_signals(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&ends, __ATOMIC_SEQ_CST))
		pthread_kill(us, SIGUSR1);
	return NULL;
}

static void *fork_slowly(void *begun)
{
	__atomic_store_n((int *)begun, 1, __ATOMIC_SEQ_CST);
	child = fork();
	if (!child)
		be_child();
	return NULL;
}

static int by_handler(void)
{
	struct sigaction action = { .sa_sigaction = fork_here, .sa_flags = SA_SIGINFO | SA_RESTART };
	pthread_t sender;
	int failed;

	us = pthread_self();
	if (sigaction(SIGUSR1, &action, NULL) || pthread_create(&sender, NULL, send_signals, NULL))
		return 1;
	failed = filters(0);
	__atomic_store_n(&ends, 1, __ATOMIC_SEQ_CST);
	pthread_join(sender, NULL);
	return failed;
}

static int by_thread(int round)
{
	struct timespec pause = { 0, round % 16 * 400000 };
	pthread_t forker;
	int begun = 0, failed;

	/* What is in memory already is not waited for while a fork copies the rest. */
	if (write(fd, "x", 1) != 1 || fsync(fd) || filters(~0u) != -1)
		return 1;
	if (pthread_create(&forker, NULL, fork_slowly, &begun))
		return 1;
	while (!__atomic_load_n(&begun, __ATOMIC_SEQ_CST))
		;
	nanosleep(&pause, NULL);
	failed = filters(SECCOMP_FILTER_FLAG_TSYNC);
	pthread_join(forker, NULL);
	return failed;
}

/* Between the libraries and the stack, which a fork copies in the order of their addresses: behind
 * the libraries' own. By small pages, each of which is looked at. */
static void become_large(void)
{
	char here, *at = (char *)((uintptr_t)&here >> 21 << 21) - LARGE - (64 << 20);

	at = mmap(at, LARGE, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (at == MAP_FAILED || madvise(at, LARGE, MADV_NOHUGEPAGE))
		_exit(3);
	memset(at, 1, LARGE);
}

/* One process that restricts itself: 0 no child, 1 one that ended well, 2 one that did not. */
static int round_of(int round)
{
	int status = 0;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || (large ? by_thread(round) : by_handler()))
		return 3;
	if (child <= 0)
		return 0;
	if (waitpid(child, &status, 0) != child)
		return 3;
	return status ? 2 : 1;
}

int main(int count, char **words)
{
	int wanted, forked = 0, bad = 0;

	if (count != 4 || chdir(words[1]))
		return 2;
	large = !strcmp(words[2], "thread");
	wanted = atoi(words[3]);
	fd = open("file", O_CREAT | O_WRONLY | O_APPEND, 0600);
	if (fd < 0 || write(fd, "x", 1) != 1 || fsync(fd))
		return 3;
	if (large)
		become_large();
	for (int round = 0; forked < wanted && round < wanted * ROUNDS_A_CHILD; round++) {
		int status = -1;
		pid_t it = fork();

		if (!it)
			_exit(round_of(round));
		if (waitpid(it, &status, 0) != it || !WIFEXITED(status) || WEXITSTATUS(status) > 2)
			return 4;
		forked += WEXITSTATUS(status) > 0;
		bad += WEXITSTATUS(status) == 2;
	}
	printf("%d forked, %d ended badly\n", forked, bad);
	return bad ? 1 : 0;
}
