/* The same write through libaio, many times, when stdin says something or ends: the kind of its
 * descriptor is the second argument, and `at once` in it is one call for all writes. */
#ifdef VICTIM_HAS_LIBAIO
#include <libaio.h>
#include "io_rounds.h"
#include "kernel_aio.h"

static struct block blocks[ROUNDS], *list[ROUNDS];
static struct event events[ROUNDS];
static io_context_t context;

static void fill(int fd)
{
	for (int i = 0; i < ROUNDS; i++) {
		blocks[i] = (struct block){ .opcode = PWRITE, .fd = (uint32_t)fd,
					    .buf = (uintptr_t)"x", .bytes = 1, .offset = i };
		list[i] = &blocks[i];
	}
}

/* How many of N blocks from the number AT on were taken and written. */
static long submit(long at, long n, long *good)
{
	long taken = io_submit(context, n, (struct iocb **)(void *)(list + at)), got;

	if (taken <= 0)
		die("io_submit");
	got = io_getevents(context, taken, taken, (struct io_event *)(void *)events, NULL);
	for (long i = 0; i < got; i++)
		*good += events[i].res == 1;
	return taken;
}

int main(int count, char **arguments)
{
	const char *kind = count > 2 ? arguments[2] : "O_DSYNC";
	long good = 0;
	int fd, r;

	begin(count, arguments);
	fd = open_for_rounds(kind);
	r = io_setup(ROUNDS, &context);
	if (r < 0) {
		printf("no io_submit here: %d\n", r);
		return 0;
	}
	prepare_for_rounds(kind, fd);
	fill(fd);
	printf("ready\n");
	getchar();
	for (long at = 0; at < ROUNDS;)
		at += submit(at, strstr(kind, "at once") ? ROUNDS - at : 1, &good);
	printf("%d rounds, %ld good\n", ROUNDS, good);
	return good != ROUNDS;
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
