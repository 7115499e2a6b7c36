/* Many processes and threads that sync, and end in several ways:
 *
 *   many short DIR N     N processes one after the other, 8 at a time, one sync each
 *   many alive DIR N     N processes that live at once and make 5 syncs each, at the same time
 *   many threads DIR N   4 threads that sync all the while; N forks, whose children make 3 syncs
 *                        each without executing anything
 *   many killed DIR N    N processes that sync without a pause and are killed while they do
 *   many jumps DIR N     N times a handler jumps out of a sync; then 100 syncs of "after-0"
 *
 * Prints how many syncs were answered: of this process, and of its children.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
	uint64_t own, children;
	uint32_t begun, over;
} *shared;

static void fail(const char *what)
{
	perror(what);
	_exit(99);
}

static int opened(const char *name, long number)
{
	char path[64];
	int fd;

	snprintf(path, sizeof path, "%s-%ld", name, number);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0)
		fail(path);
	return fd;
}

static void sync_times(int fd, int times, uint64_t *count)
{
	while (times-- > 0) {
		if (pwrite(fd, "a", 1, 0) != 1 || fsync(fd))
			fail("fsync");
		__atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST);
	}
}

static pid_t forked(void)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	return pid;
}

static void wait_for_one(void)
{
	int status;

	if (wait(&status) < 0 || (WIFEXITED(status) && WEXITSTATUS(status)))
		fail("a child");
}

static void run_short(long n)
{
	for (long i = 0; i < n; i++) {
		if (!forked()) {
			sync_times(opened("short", i % 64), 1, &shared->children);
			_exit(0);
		}
		if (i >= 8)
			wait_for_one();
	}
	while (wait(NULL) > 0)
		;
}

static void run_alive(long n)
{
	int gate[2];
	char byte;

	if (pipe(gate))
		fail("pipe");
	for (long i = 0; i < n; i++) {
		if (!forked()) {
			int fd = opened("alive", i);

			close(gate[1]);
			if (read(gate[0], &byte, 1))
				fail("the gate");
			sync_times(fd, 5, &shared->children);
			/* All of them live until the last one has made its syncs. */
			while (__atomic_load_n(&shared->children, __ATOMIC_SEQ_CST) < 5ul * (uint64_t)n)
				usleep(1000);
			_exit(0);
		}
	}
	close(gate[1]);
	for (long i = 0; i < n; i++)
		wait_for_one();
}

static void *busy(void *argument)
{
	int fd = opened("busy", (long)argument);

	while (!__atomic_load_n(&shared->over, __ATOMIC_SEQ_CST))
		sync_times(fd, 1, &shared->own);
	return NULL;
}

static void run_threads(long n)
{
	pthread_t thread[4];

	for (long i = 0; i < 4; i++)
		if (pthread_create(&thread[i], NULL, busy, (void *)i))
			fail("a thread");
	for (long i = 0; i < n; i++) {
		if (!forked()) {
			sync_times(opened("forked", i % 64), 3, &shared->children);
			_exit(0);
		}
		wait_for_one();
	}
	__atomic_store_n(&shared->over, 1, __ATOMIC_SEQ_CST);
	for (long i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
}

static void run_killed(long n)
{
	for (long i = 0; i < n; i++) {
		uint64_t before = shared->children;
		pid_t pid = forked();
		int status;

		if (!pid) {
			int fd = opened("killed", i % 64);

			for (;;) {
				/* A path to be told each time makes a record long. */
				close(fd);
				fd = opened("killed", i % 64);
				sync_times(fd, 1, &shared->children);
			}
		}
		while (__atomic_load_n(&shared->children, __ATOMIC_SEQ_CST) < before + 5)
			usleep(20);
		kill(pid, SIGKILL);
		if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
			fail("a child");
	}
}

static sigjmp_buf out;
static volatile sig_atomic_t syncs_now;

static void jump(int number)
{
	if (syncs_now)
		siglongjmp(out, number);
}

static void *disturb(void *whom)
{
	while (!__atomic_load_n(&shared->over, __ATOMIC_SEQ_CST)) {
		pthread_kill(*(pthread_t *)whom, SIGUSR1);
		usleep(50);
	}
	return NULL;
}

static void run_jumps(long n)
{
	struct sigaction action = { .sa_handler = jump };
	pthread_t self = pthread_self(), other;
	int fd = opened("before", 0);
	volatile long jumps = 0;

	sigaction(SIGUSR1, &action, NULL);
	if (pthread_create(&other, NULL, disturb, &self))
		fail("a thread");
	if (sigsetjmp(out, 1))
		jumps++;
	while (jumps < n) {
		if (pwrite(fd, "a", 1, 0) != 1)
			fail("pwrite");
		syncs_now = 1;
		if (fsync(fd))
			fail("fsync");
		syncs_now = 0;
	}
	syncs_now = 0;
	__atomic_store_n(&shared->over, 1, __ATOMIC_SEQ_CST);
	pthread_join(other, NULL);
	sync_times(opened("after", 0), 100, &shared->own);
}

int main(int count, char **arguments)
{
	const char *how = count > 3 ? arguments[1] : "";
	long n = count > 3 ? atol(arguments[3]) : 0;

	if (count < 4 || chdir(arguments[2]))
		return 2;
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		fail("mmap");
	if (!strcmp(how, "short"))
		run_short(n);
	else if (!strcmp(how, "alive"))
		run_alive(n);
	else if (!strcmp(how, "threads"))
		run_threads(n);
	else if (!strcmp(how, "killed"))
		run_killed(n);
	else if (!strcmp(how, "jumps"))
		run_jumps(n);
	else
		return 2;
	printf("%llu %llu\n", (unsigned long long)shared->own,
	       (unsigned long long)shared->children);
	return 0;
}
