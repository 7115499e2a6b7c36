/* The kernel's AIO through libaio, whose functions return -errno and leave errno alone. */
#ifdef VICTIM_HAS_LIBAIO
#include <libaio.h>
#include "io_submit.h"

static long submit(unsigned long context, long n, struct block **blocks)
{
	return io_submit((io_context_t)context, n, (struct iocb **)(void *)blocks);
}

static long get_events(unsigned long context, long n, struct event *events)
{
	struct timespec wait = { 5, 0 };

	return io_getevents((io_context_t)context, n, n, (struct io_event *)(void *)events, &wait);
}

/* libaio's own way to fill a block. */
static void prepared(io_context_t context, int fd)
{
	struct iocb block, *list[] = { &block };
	struct io_event event;

	io_prep_fsync(&block, fd);
	CALL("io_submit", "io_prep_fsync", io_submit(context, 1, list));
	CALL("io_getevents", "io_prep_fsync", io_getevents(context, 1, 1, &event, NULL));
	printf("res %d, its own block: %d\n", (int)event.res, event.obj == &block);
	io_prep_fdsync(&block, fd);
	CALL("io_submit", "io_prep_fdsync", io_submit(context, 1, list));
	CALL("io_getevents", "io_prep_fdsync", io_getevents(context, 1, 1, &event, NULL));
	printf("res %d, its own block: %d\n", (int)event.res, event.obj == &block);
}

int main(int count, char **arguments)
{
	io_context_t context = NULL;

	begin(count, arguments);
	must(io_setup(64, &context), "io_setup");
	all_cases((unsigned long)context);
	prepared(context, kinds[0].fd);
	CALL("io_destroy", "", io_destroy(context));
	return 0;
}
#else
#include "victim.h"

int main(int count, char **arguments)
{
	begin(count, arguments);
	printf("no libaio for this kind of program\n");
	return 0;
}
#endif
