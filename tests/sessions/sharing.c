/* sharing FOLDER: says "ready", then of each line that it reads what it has done:
 * "child": another process runs in its memory (CLONE_VM), and nobody waits for it; "child PID".
 * "orphan": the same of one whose parent has ended; "orphan PID".
 * "table": another process has its table of descriptors (CLONE_FILES), and a memory of its own, and
 *   opens FOLDER/log with O_SYNC; "table PID".
 * "apart": a "child" of group 100, of a process that becomes user and group 65534, as its child
 *   does; "apart PID". Needs root.
 * "vfork MS": a thread of it has a child of vfork(2) for MS milliseconds, whose descriptors are
 *   closed; "vfork PID". The others go on.
 * "chain MS": a process runs in its memory for MS milliseconds, and makes the next one before it
 *   ends; "chain PID".
 * "open": FOLDER/log is opened with O_SYNC, and written to; "open".
 * "write": 16 pages are written there; "write".
 * "leave": its first thread ends, another one goes on; "leave".
 * These processes, but for those of a chain, write and sync FOLDER/PID for ever.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 1 << 16, PAGE = 4096, NOBODY = 65534 };

static volatile int begun;
static char page[PAGE];

static void must(int is_done, const char *what)
{
	if (!is_done) {
		perror(what);
		exit(1);
	}
}

/* Without the libc's stdio: whose memory it is knows nothing of this one. */
static int sync_for_ever(void *unused)
{
	char name[32];

	(void)unused;
	snprintf(name, sizeof name, "%d", (int)getpid());
	int file = open(name, O_RDWR | O_CREAT, 0644);

	for (begun = getpid();; poll(NULL, 0, 1))
		if (pwrite(file, "a", 1, 0) != 1 || fdatasync(file) != 0)
			_exit(1);
}

static int sync_in_another_group(void *unused)
{
	/* glibc's functions would ask the threads of whose memory it is. */
	if (syscall(SYS_setgroups, 0, NULL) || syscall(SYS_setresgid, 100, 100, 100) ||
	    syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY))
		_exit(1);
	return sync_for_ever(unused);
}

static int started_apart(void)
{
	char *stack = malloc(STACK);

	begun = 0;
	must(stack && clone(sync_in_another_group, stack + STACK, CLONE_VM | SIGCHLD, NULL) > 0, "clone");
	while (!begun)
		poll(NULL, 0, 1);
	must(!setgroups(0, NULL) && !setresgid(NOBODY, NOBODY, NOBODY), "its group");
	must(!setresuid(NOBODY, NOBODY, NOBODY) && !prctl(PR_SET_DUMPABLE, 1), "its user");
	return begun;
}

static int start_one_and_end(void *stack)
{
	must(clone(sync_for_ever, (char *)stack + STACK, CLONE_VM | SIGCHLD, NULL) > 0, "clone");
	while (!begun)
		poll(NULL, 0, 1);
	_exit(0);
}

static int open_log(void) { return open("log", O_WRONLY | O_CREAT | O_SYNC | O_CLOEXEC, 0644); }

static int open_and_sync_for_ever(void *told)
{
	int log = open_log();

	if (write(*(int *)told, &log, sizeof log) != sizeof log)
		_exit(1);
	return sync_for_ever(NULL);
}

/* The descriptor that the other one has opened. */
static int started_with_table(int *pid)
{
	char *stack = malloc(STACK);
	int ends[2], log = -1;

	must(stack && !pipe(ends), "a pipe");
	*pid = clone(open_and_sync_for_ever, stack + STACK, CLONE_FILES | SIGCHLD, &ends[1]);
	must(*pid > 0 && read(ends[0], &log, sizeof log) == sizeof log && log >= 0, "clone");
	return log;
}

static int started(int is_orphan)
{
	char *stack = calloc(2, STACK);

	must(stack != NULL, "a stack");
	begun = 0;
	if (is_orphan) {
		/* Of an orphan the parent is whoever adopts it. */
		pid_t parent = clone(start_one_and_end, stack + 2 * STACK, CLONE_VM | SIGCHLD, stack);
		must(parent > 0 && waitpid(parent, NULL, 0) == parent, "the parent");
	} else {
		must(clone(sync_for_ever, stack + STACK, CLONE_VM | SIGCHLD, NULL) > 0, "clone");
	}
	while (!begun)
		poll(NULL, 0, 1);
	return begun;
}

/* Its stack is used again, by the eighth after it. */
static int live_and_pass_on(void *ms)
{
	static char *stacks;
	static int number;

	if (!stacks)
		stacks = calloc(8, STACK);
	poll(NULL, 0, *(int *)ms);
	number = (number + 1) % 8;
	begun = getpid();
	_exit(clone(live_and_pass_on, stacks + (number + 1) * STACK, CLONE_VM | CLONE_PARENT | SIGCHLD,
	            ms) < 0);
}

static void *have_a_child(void *ms)
{
	if (!vfork()) {
		close_range(3, ~0u, 0);
		begun = getpid();
		poll(NULL, 0, *(int *)ms);
		_exit(0);
	}
	return NULL;
}

static void *serve(void *said)
{
	static int log = -1, ms;
	char line[64];
	pthread_t thread;

	for (puts(said), fflush(stdout); fgets(line, sizeof line, stdin); fflush(stdout)) {
		line[strcspn(line, "\n")] = 0;
		if (strcmp(line, "child") == 0 || strcmp(line, "orphan") == 0) {
			printf("%s %d\n", line, started(line[0] == 'o'));
		} else if (strcmp(line, "table") == 0) {
			log = started_with_table(&ms);
			printf("table %d\n", ms);
		} else if (strcmp(line, "apart") == 0) {
			printf("apart %d\n", started_apart());
		} else if (sscanf(line, "vfork %d", &ms) == 1) {
			begun = 0;
			must(pthread_create(&thread, NULL, have_a_child, &ms) == 0, "a thread");
			while (!begun)
				poll(NULL, 0, 1);
			printf("vfork %d\n", begun);
		} else if (sscanf(line, "chain %d", &ms) == 1) {
			char *stack = malloc(STACK);

			begun = 0;
			must(stack && signal(SIGCHLD, SIG_IGN) != SIG_ERR, "what a chain needs");
			must(clone(live_and_pass_on, stack + STACK, CLONE_VM | SIGCHLD, &ms) > 0, "clone");
			while (!begun)
				poll(NULL, 0, 1);
			printf("chain %d\n", begun);
		} else if (strcmp(line, "open") == 0) {
			log = open_log();
			must(pwrite(log, page, 1, 0) == 1, "write");
			puts("open");
		} else if (strcmp(line, "leave") == 0) {
			must(pthread_create(&thread, NULL, serve, "leave") == 0, "a thread");
			pthread_exit(NULL);
		} else {
			for (int i = 0; i < 16; i++)
				must(pwrite(log, page, PAGE, i * (off_t)PAGE) == PAGE, "write");
			puts("write");
		}
	}
	kill(0, SIGKILL);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 2 || chdir(argv[1]) != 0)
		return 2;
	memset(page, 'k', sizeof page);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	serve("ready");
	return 0;
}
