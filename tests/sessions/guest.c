/* guest WHAT FOLDER: a program that is not like others. Says "ready", and then one line for each
 * that it reads:
 *
 *   sync NAME    appends a byte to FOLDER/file and syncs it: `sync 0`, or `sync ERRNO`
 *   check        how often something was not as it is without synclater: `check N`
 *   now          is WHAT from now on, where WHAT begins with "later-": `now 0`
 *
 * WHAT is
 *   clock        it is killed where it reads the time stamp counter (PR_SET_TSC)
 *   executed     the same, from before it executed this
 *   dispatch     its calls from outside of libc are its own handler's (Syscall User Dispatch)
 *   shared       it has mapped a file that it may write and execute, called libc.img; `check` tells
 *                how many bytes of that file have changed
 *   flags        it enters the kernel by instructions of its own; `check` tells how often the flags
 *                were others behind that
 *   numbers      a thread places descriptors at the lowest numbers, and reads what it has sent
 *   moved        fsync's code is a copy of what was there; `check` tells how many bytes differ from
 *                what it was at the start
 *   full         it may have three mappings more (vm.max_map_count); `check` tells how many of them
 *                are gone
 *   kicked       it takes one signal after the other; `check` tells how often that was behind the
 *                end of its code, where nothing is
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <ucontext.h>
#include <unistd.h>

#define PR_SET_DISPATCH 59

enum { LEN = 8192, HELD = 20, PLACED = 6, HIGH = 200, ROOM = 3 };

static long wrong;
static volatile char selector;
static unsigned char *image, was[LEN];
static int image_fd;

static void must(int is_done, const char *what)
{
	if (!is_done) {
		perror(what);
		exit(1);
	}
}

static void handle(int signal)
{
	(void)signal;
	selector = 0;
	wrong++;
}

static void dispatch(void)
{
	unsigned long from, to, first = 0, last = 0;
	char line[400], rights[8];
	FILE *maps = fopen("/proc/self/maps", "r");

	must(maps != NULL, "maps");
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && rights[2] == 'x' &&
		    strstr(line, "/libc."))
			first = from, last = to;
	fclose(maps);
	signal(SIGSYS, handle);
	must(!prctl(PR_SET_DISPATCH, 1, first, last - first, &selector), "dispatch");
	selector = 1;
}

static void map_shared(const char *folder)
{
	char path[400];

	snprintf(path, sizeof path, "%s/libc.img", folder);
	image_fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
	must(!ftruncate(image_fd, LEN), path);
	image = mmap(NULL, LEN, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED, image_fd, 0);
	must(image != MAP_FAILED, path);
	memset(image, 0x90, LEN);
	/* mov $74, %eax; syscall; ret: fsync. mov $118, %eax; call *%gs:16; ret: that of i386. */
	memcpy(image + 100, "\xb8\x4a\0\0\0\x0f\x05\xc3", 8);
	memcpy(image + 200, "\xb8\x76\0\0\0\x65\xff\x15\x10\0\0\0\xc3", 13);
	memcpy(was, image, LEN);
}

static void compare_image(void)
{
	unsigned char is[LEN];

	must(pread(image_fd, is, LEN, 0) == LEN, "image");
	for (int i = 0; i < LEN; i++)
		wrong += is[i] != was[i];
}

/* Where a number that it has placed is another one's, what it reads is too. */
static void *place_numbers(void *unused)
{
	for (;;) {
		int pair[2], far, near;
		char got[8];

		must(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), "socketpair");
		near = fcntl(pair[0], F_DUPFD, HIGH);
		far = fcntl(pair[1], F_DUPFD, HIGH);
		/* A number that somebody else holds for a moment is not the one that it was before. */
		wrong += pair[0] != HELD || pair[1] != HELD + 1;
		close(pair[0]);
		close(pair[1]);
		for (int k = HELD; k < HELD + PLACED; k++)
			wrong += dup2(near, k) != k;
		must(write(far, "message", 8) == 8, "write");
		struct pollfd has_it = { HELD, POLLIN, 0 };
		wrong += poll(&has_it, 1, 100) != 1 || read(HELD, got, 8) != 8;
		for (int k = HELD; k < HELD + PLACED; k++)
			wrong += close(k) != 0;
		close(near);
		close(far);
	}
	return unused;
}

static unsigned char *fsync_code(void) { return (unsigned char *)((unsigned long)fsync & ~4095ul); }

static void move_code(void)
{
	void *copy = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *to = fsync_code();

	must(copy != MAP_FAILED, "a copy");
	memcpy(copy, to, LEN);
	must(!mprotect(copy, LEN, PROT_READ | PROT_EXEC), "mprotect");
	must(mremap(copy, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
}

static void compare_code(void)
{
	for (int i = 0; i < LEN; i++)
		wrong += fsync_code()[i] != was[i];
}

static void *one_mapping(int protection, int flags)
{
	return mmap(NULL, 4096, protection, flags | MAP_ANONYMOUS, -1, 0);
}

static int mappings_left(void)
{
	void *all[ROOM + 1];
	int n = 0;

	while (n <= ROOM && (all[n] = one_mapping(PROT_READ, MAP_SHARED)) != MAP_FAILED)
		n++;
	for (int i = 0; i < n; i++)
		munmap(all[i], 4096);
	return n;
}

static void fill_mappings(void)
{
	void *volatile heap = malloc(1); /* which is one, too */
	void *last[ROOM] = { 0 }, *p;

	must(heap != NULL, "a heap");
	/* None is one with the one before. */
	for (int i = 0; (p = one_mapping(i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE)) != MAP_FAILED; i++)
		last[i % ROOM] = p;
	for (int i = 0; i < ROOM; i++)
		munmap(last[i], 4096);
}

static void handle_anywhere(int signal, siginfo_t *info, void *context)
{
	const ucontext_t *c = context;
#ifdef __x86_64__
	unsigned long at = (unsigned long)c->uc_mcontext.gregs[REG_RIP];
#else
	unsigned long at = (unsigned long)c->uc_mcontext.gregs[REG_EIP];
#endif
	extern char etext;
	unsigned long end = (unsigned long)&etext;

	(void)signal;
	(void)info;
	wrong += at >= end && at < ((end + 4095) & ~4095ul);
}

static void be_kicked(void)
{
	struct sigaction action = { .sa_sigaction = handle_anywhere, .sa_flags = SA_SIGINFO | SA_RESTART };
	pid_t whom = getpid();

	must(!sigaction(SIGUSR1, &action, NULL), "a handler");
	if (fork())
		return;
	prctl(PR_SET_NAME, "kicks");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!kill(whom, SIGUSR1))
		for (volatile int i = 0; i < 20000; i++)
			;
	_exit(0);
}

/* The flags behind an fsync, where they were FLAGS in front of it. */
static unsigned long flags_behind(unsigned long flags, int fd)
{
	unsigned long behind;

#ifdef __x86_64__
	__asm__ volatile("lea -128(%%rsp), %%rsp\n\t"
			 "push %1\n\t"
			 "popfq\n\t"
			 "mov $74, %%eax\n\t"
			 "syscall\n\t"
			 "pushfq\n\t"
			 "pop %0\n\t"
			 "push $0x202\n\t"
			 "popfq\n\t"
			 "lea 128(%%rsp), %%rsp"
			 : "=&r"(behind)
			 : "r"(flags), "D"((long)fd)
			 : "rax", "rcx", "r11", "memory", "cc");
#else
	__asm__ volatile("push %1\n\t"
			 "popf\n\t"
			 "mov $118, %%eax\n\t"
			 "call *%%gs:16\n\t"
			 "pushf\n\t"
			 "pop %0\n\t"
			 "push $0x202\n\t"
			 "popf"
			 : "=&r"(behind)
			 : "r"(flags), "b"(fd)
			 : "eax", "memory", "cc");
#endif
	return behind;
}

/* Carry, parity, auxiliary, zero, sign, direction, overflow, alignment check: alone and all. */
static void compare_flags(int fd)
{
	static const unsigned long each[] = { 0, 1, 4, 16, 64, 128, 1024, 2048, 0x40000, 0x40cd5 };
	const unsigned long all = 0x40cd5;

	for (int round = 0; round < 100; round++)
		for (size_t k = 0; k < sizeof each / sizeof *each; k++)
			wrong += (flags_behind(0x202 | each[k], fd) & all) != each[k];
}

static void be(const char *what, const char *folder)
{
	pthread_t thread;

	if (!strcmp(what, "clock"))
		must(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV), "PR_SET_TSC");
	else if (!strcmp(what, "dispatch"))
		dispatch();
	else if (!strcmp(what, "shared"))
		map_shared(folder);
	else if (!strcmp(what, "moved"))
		move_code();
	else if (!strcmp(what, "full"))
		fill_mappings();
	else if (!strcmp(what, "kicked"))
		be_kicked();
	else if (!strcmp(what, "numbers"))
		must(!pthread_create(&thread, NULL, place_numbers, NULL), "a thread");
}

int main(int count, char **words)
{
	char line[100], path[400];
	int fd, later;

	if (count != 3)
		return 2;
	if (!strcmp(words[1], "executed")) {
		must(!prctl(PR_SET_TSC, PR_TSC_SIGSEGV), "PR_SET_TSC");
		execl("/proc/self/exe", "guest", "as it is", words[2], NULL);
		must(0, "exec");
	}
	setlinebuf(stdout);
	snprintf(path, sizeof path, "%s/file", words[2]);
	fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0666);
	must(fd >= 0, path);
	while (!strcmp(words[1], "numbers") && open("/dev/null", O_RDONLY) < HELD - 1)
		;
	later = !strncmp(words[1], "later-", 6);
	memcpy(was, fsync_code(), LEN);
	if (!later)
		be(words[1], words[2]);
	puts("ready");
	while (fgets(line, sizeof line, stdin)) {
		if (!strncmp(line, "sync ", 5)) {
			(void)!write(fd, "x", 1);
			printf("sync %d\n", fsync(fd) ? errno : 0);
		} else if (!strcmp(line, "check\n")) {
			if (image)
				compare_image();
			if (strstr(words[1], "moved"))
				compare_code();
			if (!strcmp(words[1], "full"))
				wrong = ROOM - mappings_left();
			if (!strcmp(words[1], "flags"))
				compare_flags(fd);
			printf("check %ld\n", wrong);
		} else if (!strcmp(line, "now\n") && later) {
			be(words[1] + 6, words[2]);
			puts("now 0");
		} else {
			return 2;
		}
	}
	return 0;
}
