/* Blocks of the kernel's AIO belong to whoever has taken their completion, another thread: it fills
 * each at once, and nobody else writes to it behind that. */
#include "kernel_aio.h"

#include <pthread.h>

#define BLOCKS 2003
#define FILLED 0xa5

static struct block blocks[BLOCKS];
static unsigned long context;

static void *reap(void *unused)
{
	struct event events[8];
	long good = 0, n;

	(void)unused;
	for (long taken = 0; taken < BLOCKS; taken += n) {
		n = syscall(SYS_io_getevents, context, 1, 8, events, NULL);
		if (n <= 0)
			die("io_getevents");
		for (long i = 0; i < n; i++) {
			memset((void *)(uintptr_t)events[i].obj, FILLED, sizeof blocks[0]);
			good += events[i].res >= 0;
		}
	}
	return (void *)good;
}

static int is_filled(const struct block *b)
{
	const unsigned char *bytes = (const unsigned char *)b;

	for (size_t i = 0; i < sizeof *b; i++)
		if (bytes[i] != FILLED)
			return 0;
	return 1;
}

static void submit(struct block *b)
{
	while (syscall(SYS_io_submit, context, 1, &b) != 1)
		if (errno != EAGAIN)
			die("io_submit");
}

int main(int count, char **arguments)
{
	pthread_t reaper;
	void *good;
	long filled = 0;
	int fds[2];

	begin(count, arguments);
	must(chdir(work), "chdir");
	fds[0] = must(open("plain", O_CREAT | O_RDWR, 0600), "plain");
	fds[1] = must(open("dsync", O_CREAT | O_RDWR | O_DSYNC, 0600), "dsync");
	must((int)syscall(SYS_io_setup, 64, &context), "io_setup");
	must(pthread_create(&reaper, NULL, reap, NULL), "a thread");
	for (int i = 0; i < BLOCKS; i++) {
		blocks[i].opcode = i % 3 ? PWRITE : FDSYNC;
		blocks[i].fd = (uint32_t)fds[i % 3 == 2];
		blocks[i].buf = i % 3 ? (uintptr_t)"x" : 0;
		blocks[i].bytes = i % 3 != 0;
		submit(&blocks[i]);
	}
	pthread_join(reaper, &good);
	for (int i = 0; i < BLOCKS; i++)
		filled += is_filled(&blocks[i]);
	printf("%d blocks, %ld good, %ld as they were left\n", BLOCKS, (long)good, filled);
	return 0;
}
