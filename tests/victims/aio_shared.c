/* One block of the kernel's AIO that several threads submit, each in a context of its own. */
#include "kernel_aio.h"

#include <pthread.h>

#define THREADS 4
#define ROUNDS  1000

static struct block block = { .opcode = FSYNC };
static long good;

static void *submit(void *unused)
{
	unsigned long context = 0;
	struct block *blocks[] = { &block };
	struct event event;

	must((int)syscall(SYS_io_setup, 8, &context), "io_setup");
	for (int i = 0; i < ROUNDS; i++) {
		if (syscall(SYS_io_submit, context, 1, blocks) != 1)
			die("io_submit");
		if (syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1)
			die("io_getevents");
		__atomic_fetch_add(&good, event.res == 0, __ATOMIC_RELAXED);
	}
	syscall(SYS_io_destroy, context);
	return unused;
}

int main(int count, char **arguments)
{
	pthread_t thread[THREADS];

	begin(count, arguments);
	must(chdir(work), "chdir");
	block.fd = (uint32_t)must(open("file", O_CREAT | O_RDWR, 0600), "file");
	for (int i = 0; i < THREADS; i++)
		must(-pthread_create(&thread[i], NULL, submit, NULL), "a thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	printf("%ld of %d are good, the block is a sync: %d\n", good, THREADS * ROUNDS,
	       block.opcode == FSYNC);
	return 0;
}
