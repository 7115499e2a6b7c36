/* More calls that may restrict the process than have a place each:
 *
 *     crowd FOLDER CALLS
 *
 * CALLS threads are in seccomp(2), held there by a page that userfaultfd does not give. Then the
 * process forks, and the child syncs a file REQUESTS times: none of that may be put off. Prints
 * "done". Needs root.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, REQUESTS = 50 };

static void *withheld;
static int begun;

static void *restricts(void *unused)
{
	(void)unused;
	__atomic_add_fetch(&begun, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, withheld);
	return NULL;
}

static int withhold(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	withheld = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	range.range.start = (uintptr_t)withheld;
	range.range.len = PAGE;
	return faults < 0 || withheld == MAP_FAILED || ioctl(faults, UFFDIO_API, &api) ||
	       ioctl(faults, UFFDIO_REGISTER, &range);
}

/* How many threads wait in a call of this number. */
static int waiting_in(long nr)
{
	DIR *threads = opendir("/proc/self/task");
	struct dirent *thread;
	int found = 0;

	while (threads && (thread = readdir(threads))) {
		char name[300], text[64];
		int at;
		long n;

		snprintf(name, sizeof name, "/proc/self/task/%s/syscall", thread->d_name);
		at = open(name, O_RDONLY);
		if (at < 0)
			continue;
		n = read(at, text, sizeof text - 1);
		close(at);
		text[n > 0 ? n : 0] = 0;
		found += n > 0 && strtol(text, NULL, 10) == nr && strchr(text, ' ');
	}
	closedir(threads);
	return found;
}

int main(int count, char **words)
{
	pthread_attr_t small;
	pthread_t thread;
	int calls = count == 3 ? atoi(words[2]) : 0, status = -1, fd;
	pid_t child;

	if (!calls || chdir(words[1]) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || withhold())
		return 2;
	fd = open("file", O_CREAT | O_WRONLY | O_APPEND, 0600);
	if (fd < 0 || write(fd, "x", 1) != 1 || fsync(fd))
		return 3;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	for (int k = 0; k < calls; k++)
		if (pthread_create(&thread, &small, restricts, NULL))
			return 4;
	while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < calls || waiting_in(SYS_seccomp) < calls)
		usleep(1000);
	child = fork();
	if (!child) {
		for (int k = 0; k < REQUESTS; k++)
			if (fdatasync(fd))
				_exit(1);
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		return 5;
	puts("done");
	fflush(stdout);
	_exit(0);
}
