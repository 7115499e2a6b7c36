/* Requests on small stacks: that of a signal (SIGSTKSZ of old, 8 KiB) and the smallest that a
 * thread of glibc may have (musl's may have 2 KiB: docs/LIMITS.md). What lies below a signal's
 * stack is somebody else's. */
#include "victim.h"

#include <pthread.h>
#include <sys/mman.h>

#define STACK 8192
#define BELOW (64 << 10)

static int file;
static char *memory;
static unsigned char *area;

static void do_fsync(void) { fsync(file); }

static void do_msync(void)
{
	memory[0]++;
	msync(memory, 4096, MS_SYNC);
}

static void do_open_and_write(void)
{
	int fd = open("file", O_RDWR | O_SYNC);

	must((int)write(fd, "x", 1), "write");
	close(fd);
}

static void do_syncfs(void) { syncfs(file); }

static struct {
	const char *name;
	void (*act)(void);
} requests[] = {
	{ "fsync", do_fsync },
	{ "msync", do_msync },
	{ "open and write", do_open_and_write },
	{ "syncfs", do_syncfs },
};
static void (*act)(void);

static void handle(int signal)
{
	(void)signal;
	act();
}

static void *in_a_thread(void *unused)
{
	act();
	return unused;
}

int main(int count, char **arguments)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_ONSTACK };
	pthread_attr_t small;

	begin(count, arguments);
	must(chdir(work), "chdir");
	file = must(open("file", O_CREAT | O_RDWR, 0600), "file");
	must(ftruncate(file, 8192), "ftruncate");
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	area = mmap(NULL, BELOW + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(sigaltstack(&(stack_t){ .ss_sp = area + BELOW, .ss_size = STACK }, NULL), "sigaltstack");
	must(sigaction(SIGUSR1, &action, NULL), "sigaction");
	pthread_attr_init(&small);
	must(-pthread_attr_setstacksize(&small, 16384), "a small stack");
	for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
		pthread_t thread;
		int over = 0;

		act = requests[i].act;
		must(-pthread_create(&thread, &small, in_a_thread, NULL), "a thread");
		pthread_join(thread, NULL);
		memset(area, 0x55, BELOW);
		raise(SIGUSR1);
		while (over < BELOW && area[over] == 0x55)
			over++;
		printf("%s: %d bytes below\n", requests[i].name, BELOW - over);
	}
	return 0;
}
