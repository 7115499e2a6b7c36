/* restricts WHAT FOLDER: a program that restricts itself. Says "ready", and then one line for each
 * that it reads:
 *
 *   sync NAME    appends a byte to FOLDER/file and syncs it: `sync 0`, or `sync ERRNO`
 *   now          does WHAT: `now 0`, or how much of it was not as it is without synclater
 *   on           lets go of what is held: `on 0`, or the errno of what was
 *
 * WHAT is
 *   often        has the time stamp counter trapped 5,000 times: each one stands
 *   high         puts a filter on itself by a number whose upper half the kernel does not look at;
 *                like all filters here it kills at calls that fsync does not make, and we might
 *   enabled      allows itself the time stamp counter, which it was allowed before
 *   unequal      asks for a filter on all threads, which fails as one has another: no errno
 *   by-place     has a filter by which prctl fails that libc has not made; then two more by prctl
 *   held         a thread asks for a filter, and the kernel asks somebody who answers at `on`
 *   refused      the same of a filter that is none
 *   forks        the same; a signal's handler forks while it is held, and the child's child syncs
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOKS(at) \
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, at))
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
#define SAYS(answer)       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_##answer)
#define KILLED(call)       IS(SYS_##call, 0, 1), SAYS(KILL_PROCESS)

enum { OFTEN = 5000, SYNCS = 20 };

static struct sock_filter kills[] = { LOOKS(nr),
				      KILLED(sync_file_range),
				      KILLED(statx),
				      KILLED(syncfs),
				      KILLED(msync),
				      KILLED(socket),
				      KILLED(connect),
				      KILLED(clock_gettime),
				      KILLED(getpid),
				      KILLED(geteuid),
				      SAYS(ALLOW) };
static struct sock_filter asks[] = { LOOKS(nr), IS(SYS_seccomp, 0, 1), SAYS(USER_NOTIF),
				     SAYS(ALLOW) };
static struct sock_filter allows[] = { SAYS(ALLOW) };
static struct sock_filter by_place[] = { LOOKS(nr),
					 IS(SYS_prctl, 0, 4),
					 LOOKS(instruction_pointer),
					 BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0, 0, 1),
					 BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0, 0, 1),
					 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
					 SAYS(ALLOW) };
#define PROGRAM(f) (&(struct sock_fprog){ sizeof f / sizeof *f, f })

static int fd, end[2], result, in_child;
static const char *what;
static pthread_t asker;

static void must(int is_done, const char *did)
{
	if (!is_done) {
		perror(did);
		exit(1);
	}
}

static long filters(unsigned flags, struct sock_fprog *program)
{
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, program);
}

static int syncs(int n)
{
	int wrong = 0;

	while (n--)
		wrong += write(fd, "x", 1) != 1 || fsync(fd);
	return wrong;
}

static int libcs_code(struct dl_phdr_info *info, size_t size, void *text)
{
	(void)size;
	if (!strstr(info->dlpi_name, "libc.so"))
		return 0;
	for (int k = 0; k < info->dlpi_phnum; k++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[k];

		if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
			((uint32_t *)text)[0] = (uint32_t)(info->dlpi_addr + part->p_vaddr);
			((uint32_t *)text)[1] = ((uint32_t *)text)[0] + (uint32_t)part->p_memsz;
		}
	}
	return 1;
}

static int is_wrong_by_place(void)
{
	uint32_t text[2] = { 0, 0 };

	must(dl_iterate_phdr(libcs_code, text), "libc");
	by_place[3].k = text[0];
	by_place[4].k = text[1];
	must(!filters(0, PROGRAM(by_place)), "a filter by place");
	return syncs(1) + (prctl(PR_SET_TSC, PR_TSC_ENABLE) != 0) +
	       (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PROGRAM(allows), 0, 0) != 0) + syncs(1);
}

/* Another thread, with a filter of its own. */
static void *is_unequal(void *ready)
{
	must(!filters(0, PROGRAM(allows)), "a filter of one thread");
	write(*(int *)ready, "x", 1);
	pause();
	return NULL;
}

static void be_unequal(void)
{
	pthread_t other;
	int ready[2];
	char byte;

	must(!pipe(ready) && !pthread_create(&other, NULL, is_unequal, &ready[1]), "a thread");
	must(read(ready[0], &byte, 1) == 1, "it");
}

static void fork_here(int signal)
{
	(void)signal;
	if (!in_child && !fork())
		in_child = 1;
}

/* Answers for the kernel: where a handler is to run before that, at the second time, else from `on`
 * on. */
static void listen_to(int listener, pid_t asks_us, int is_signalled)
{
	int holds = !is_signalled;
	struct seccomp_notif asked;
	char byte;

	for (;;) {
		memset(&asked, 0, sizeof asked);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked))
			continue;
		if (is_signalled) {
			is_signalled = 0;
			kill(asks_us, SIGUSR1);
			continue;
		}
		if (holds && read(end[0], &byte, 1) != 1)
			_exit(0);
		holds = 0;
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND,
		      &(struct seccomp_notif_resp){ asked.id, 0, 0,
						    SECCOMP_USER_NOTIF_FLAG_CONTINUE });
	}
}

static void *is_held(void *unused)
{
	(void)unused;
	result = filters(0, strcmp(what, "refused") ? PROGRAM(kills) : NULL) ? errno : 0;
	return NULL;
}

/* How the child of a handler ended, and its own. */
static int is_wrong_of_forks(void)
{
	int status = -1;
	pid_t child;

	is_held(NULL);
	if (in_child) {
		int wrong = syncs(SYNCS);

		child = fork();
		if (!child)
			_exit(syncs(SYNCS));
		waitpid(child, &status, 0);
		_exit(wrong || status);
	}
	wait(&status);
	return (result != 0) + (status != 0) + syncs(SYNCS);
}

static void prepare(void)
{
	const int holds = !strcmp(what, "held") || !strcmp(what, "refused");
	const int forks = !strcmp(what, "forks");
	pid_t us = getpid();
	int listener;

	must(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
	if (!strcmp(what, "unequal"))
		be_unequal();
	if (!holds && !forks)
		return;
	must(!pipe(end), "pipe");
	listener = (int)filters(SECCOMP_FILTER_FLAG_NEW_LISTENER, PROGRAM(asks));
	must(listener >= 0, "a listener");
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		listen_to(listener, us, forks);
	}
	close(listener);
	sigaction(SIGUSR1, &(struct sigaction){ .sa_handler = fork_here, .sa_flags = SA_RESTART },
		  NULL);
}

static int wrong_now(void)
{
	int wrong = 0;

	if (!strcmp(what, "often")) {
		for (int k = 0; k < OFTEN; k++)
			wrong += prctl(PR_SET_TSC, PR_TSC_SIGSEGV) != 0;
		return wrong;
	}
#ifdef __LP64__
	if (!strcmp(what, "high"))
		return syscall(SYS_seccomp, 0x100000001, 0, PROGRAM(kills)) != 0;
#endif
	if (!strcmp(what, "enabled"))
		return prctl(PR_SET_TSC, PR_TSC_ENABLE) != 0;
	if (!strcmp(what, "unequal"))
		return filters(SECCOMP_FILTER_FLAG_TSYNC, PROGRAM(kills)) <= 0;
	if (!strcmp(what, "by-place"))
		return is_wrong_by_place();
	if (!strcmp(what, "forks"))
		return is_wrong_of_forks();
	return pthread_create(&asker, NULL, is_held, NULL);
}

int main(int count, char **words)
{
	char line[100], path[400];

	if (count != 3)
		return 2;
	what = words[1];
	setlinebuf(stdout);
	snprintf(path, sizeof path, "%s/file", words[2]);
	fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0666);
	must(fd >= 0, path);
	prepare();
	puts("ready");
	while (fgets(line, sizeof line, stdin)) {
		if (!strncmp(line, "sync ", 5)) {
			printf("sync %d\n", syncs(1) ? errno : 0);
		} else if (!strcmp(line, "now\n")) {
			printf("now %d\n", wrong_now());
		} else if (!strcmp(line, "on\n")) {
			must(write(end[1], "x", 1) == 1, "end");
			pthread_join(asker, NULL);
			printf("on %d\n", result);
		} else {
			return 2;
		}
	}
	return 0;
}
