/* stack FOLDER: says "ready", and goes by the lines that it reads:
 *   calls   how many bytes of the stack below the caller each call takes, in itself and in whatever
 *           answers it: "NAME BYTES" each, then "end"
 *   wait    waits on a small stack for another line, then: "wait BYTES"
 *
 * What takes stack is called from a coroutine whose stack was painted; each call three times, of
 * which the last two count: the first may look up what it needs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

enum { SIZE = 65536, PAINT = 0x5a, PAGE = 4096 };

static ucontext_t main_context, coroutine;
static char *stack, *caller, *map;
static int fd, synced;
static long (*called)(void);

static long do_fsync(void) { return fsync(fd); }
static long do_fdatasync(void) { return fdatasync(fd); }
static long do_msync(void) { map[0]++; return msync(map, PAGE, MS_SYNC); }
static long do_syncfs(void) { return syncfs(fd); }
static long do_sync(void) { sync(); return 0; }
static long do_range(void) { return sync_file_range(fd, 0, PAGE, 7); }
static long do_write(void) { return write(synced, "x", 1) - 1; }
static long do_fcntl(void) { return (fcntl(synced, F_GETFL) & O_SYNC) - O_SYNC; }
static long do_close(void) { return close(dup(fd)); }

static long do_pwritev2(void)
{
	struct iovec one = { "x", 1 };

	return pwritev2(fd, &one, 1, 0, RWF_DSYNC) - 1;
}

static long do_open(void)
{
	int opened = open("opened", O_CREAT | O_RDWR | O_SYNC | O_CLOEXEC, 0600);

	return opened < 0 ? -1 : close(opened);
}

static long do_syscall(void) { return syscall(SYS_fsync, fd); }
static long do_nothing(void) { return 0; }

/* By a function of libc's that was called before: the dynamic linker takes 3 KiB to find one. */
static long do_wait(void)
{
	char byte;

	do
		if (syscall(SYS_read, 0, &byte, 1) != 1)
			return -1;
	while (byte != '\n');
	return 0;
}

static const struct way {
	const char *name;
	long (*call)(void);
} way[] = {
	{ "fsync", do_fsync },	     { "fdatasync", do_fdatasync },
	{ "msync", do_msync },	     { "syncfs", do_syncfs },
	{ "sync", do_sync },	     { "sync_file_range", do_range },
	{ "pwritev2", do_pwritev2 }, { "open", do_open },
	{ "write", do_write },	     { "fcntl", do_fcntl },
	{ "close", do_close },	     { "syscall", do_syscall },
	{ "nothing", do_nothing },
};

static void in_coroutine(void)
{
	char here;

	caller = &here;
	if (called())
		caller = NULL;
	swapcontext(&coroutine, &main_context);
}

/* What is left of the paint tells how deep it went; -1: the call has failed. */
static long depth(void)
{
	char *first = stack;

	while (first < stack + SIZE && *first == PAINT)
		first++;
	return caller ? caller - first : -1;
}

static long taken_by(long (*call)(void))
{
	memset(stack, PAINT, SIZE);
	getcontext(&coroutine);
	coroutine.uc_stack.ss_sp = stack;
	coroutine.uc_stack.ss_size = SIZE;
	coroutine.uc_link = NULL;
	makecontext(&coroutine, in_coroutine, 0);
	called = call;
	swapcontext(&main_context, &coroutine);
	return depth();
}

/* Says what each call takes. */
static int tell_calls(void)
{
	if (synced)
		close(synced);
	synced = open("synced", O_CREAT | O_RDWR | O_SYNC | O_CLOEXEC, 0600);
	for (size_t k = 0; k < sizeof way / sizeof *way; k++) {
		long most = 0;

		for (int round = 0; round < 3; round++) {
			long taken = taken_by(way[k].call);

			if (taken < 0) {
				printf("%s failed\n", way[k].name);
				return 0;
			}
			most = round && taken > most ? taken : most;
		}
		printf("%s %ld\n", way[k].name, most);
	}
	puts("end");
	return 1;
}

int main(int count, char **words)
{
	char line[100];

	if (count != 2 || chdir(words[1]))
		return 2;
	setlinebuf(stdout);
	setvbuf(stdin, NULL, _IONBF, 0);
	stack = malloc(SIZE);
	fd = open("file", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (ftruncate(fd, PAGE))
		return 1;
	map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	syscall(SYS_getpid);
	puts("ready");
	while (fgets(line, sizeof line, stdin)) {
		if (line[0] == 'w')
			printf("wait %ld\n", taken_by(do_wait));
		else if (!tell_calls())
			return 1;
	}
	return 0;
}
