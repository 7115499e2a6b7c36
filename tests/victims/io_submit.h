/* The cases for io_submit: SUBMIT and GET_EVENTS are the program's way to make the two calls. */
#ifndef IO_SUBMIT_H
#define IO_SUBMIT_H

#include "kernel_aio.h"

/* As the kernel has them: a result, or -errno. */
static long submit(unsigned long context, long n, struct block **blocks);
static long get_events(unsigned long context, long n, struct event *events);

static char text[4096] __attribute__((aligned(4096))) = "what is to be written";

static void by_data(struct event *events, long n)
{
	for (long i = 0; i < n; i++)
		for (long k = i + 1; k < n; k++)
			if (events[k].data < events[i].data) {
				struct event swap = events[i];

				events[i] = events[k];
				events[k] = swap;
			}
}

/* Submits blocks and shows what came of it: completions in the order of their data. */
static void run(unsigned long context, const char *name, struct block *blocks, long n)
{
	struct block *list[64], before[64];
	struct event events[64];
	long taken, got, same = 1;

	for (long i = 0; i < n; i++) {
		blocks[i].data = 1000 + (uint64_t)i;
		list[i] = &blocks[i];
		before[i] = blocks[i];
	}
	errno = UNTOUCHED;
	taken = submit(context, n, list);
	printf("io_submit(%s) = %ld errno=%d\n", name, taken, errno);
	for (long i = 0; i < n; i++) {
		before[i].key = blocks[i].key; /* the kernel writes this one */
		same &= !memcmp(&before[i], &blocks[i], sizeof before[i]);
	}
	printf("  the blocks are as they were: %ld\n", same);
	if (taken <= 0)
		return;
	got = get_events(context, taken, events);
	by_data(events, got);
	for (long i = 0; i < got; i++)
		printf("  data %d res %d res2 %d, its own block: %d\n", (int)events[i].data,
		       (int)events[i].res, (int)events[i].res2,
		       events[i].obj == (uint64_t)(uintptr_t)&blocks[events[i].data - 1000]);
}

static struct block sync_of(int fd, int opcode)
{
	return (struct block){ .opcode = (uint16_t)opcode, .fd = (uint32_t)fd };
}

static struct block write_of(int fd, unsigned rw_flags)
{
	return (struct block){ .opcode = PWRITE, .fd = (uint32_t)fd, .rw_flags = rw_flags,
			       .buf = (uintptr_t)text, .bytes = 512 };
}

static void every_descriptor(unsigned long context)
{
	static const char *const blocking[] = { "unix socket", "pipe to read", "fifo" };

	EACH_KIND(k) {
		struct block fsyncs[2] = { sync_of(k->fd, FSYNC), sync_of(k->fd, FDSYNC) };
		struct block writes[2] = { write_of(k->fd, RWF_DSYNC_), write_of(k->fd, RWF_SYNC_) };
		int blocks = 0;

		run(context, k->name, fsyncs, 1);
		run(context, k->name, fsyncs + 1, 1);
		for (unsigned i = 0; i < ARRAY_LEN(blocking); i++)
			blocks |= !strcmp(k->name, blocking[i]);
		if (blocks)
			continue;
		run(context, k->name, writes, 1);
		run(context, k->name, writes + 1, 1);
	}
}

/* Fields that the kernel wants to be 0 in a sync, and others that it does not know. */
static void wrong_fields(unsigned long context, int fd)
{
	struct block b[8];

	for (unsigned i = 0; i < ARRAY_LEN(b); i++)
		b[i] = sync_of(fd, FSYNC);
	b[0].buf = (uintptr_t)text;
	b[1].bytes = 1;
	b[2].offset = 1;
	b[3].rw_flags = RWF_DSYNC_;
	b[4].reserved = 1;
	b[5].flags = 64;
	b[6].flags = BLOCK_EVENTFD, b[6].event_fd = 999;
	b[7].opcode = 99;
	for (unsigned i = 0; i < ARRAY_LEN(b); i++) {
		char name[32];

		snprintf(name, sizeof name, "wrong field %u", i);
		run(context, name, &b[i], 1);
	}
	b[0] = write_of(fd, 1 << 20);
	run(context, "unknown rw flag", b, 1);
	b[0] = write_of(fd, RWF_DSYNC_), b[0].offset = -1;
	run(context, "negative offset", b, 1);
	b[0] = write_of(fd, RWF_DSYNC_), b[0].buf = (uintptr_t)NOWHERE;
	run(context, "nowhere", b, 1);
	b[0] = write_of(fd, RWF_SYNC_), b[0].bytes = 0;
	run(context, "nothing", b, 1);
}

static void with_eventfd(unsigned long context, int fd)
{
	struct block b = sync_of(fd, FSYNC);
	int told = must(eventfd(0, EFD_NONBLOCK), "eventfd");
	uint64_t times = 0;

	b.flags = BLOCK_EVENTFD, b.event_fd = (uint32_t)told;
	run(context, "with an eventfd", &b, 1);
	if (read(told, &times, sizeof times) < 0)
		printf("  the eventfd is silent\n");
	printf("  told %d times\n", (int)times);
	close(told);
}

/* 37 blocks, more than one batch of anybody's; then with a bad one in a place. */
static void many(unsigned long context, int fd)
{
	static const long places[] = { 0, 1, 31, 32, 33, 36 };
	struct block b[37];

	for (unsigned p = 0; p <= ARRAY_LEN(places); p++) {
		char name[32] = "37 blocks";

		for (long i = 0; i < 37; i++)
			b[i] = i % 3 ? sync_of(fd, i % 2 ? FSYNC : FDSYNC) : write_of(fd, RWF_DSYNC_);
		if (p < ARRAY_LEN(places)) {
			b[places[p]].fd = 999;
			snprintf(name, sizeof name, "37 blocks, %ld bad", places[p]);
		}
		run(context, name, b, 37);
	}
}

/* In a child: whoever looks behind these pointers before the kernel does, dies. */
static void in_a_child(const char *name, unsigned long context, long n, struct block **blocks)
{
	pid_t child;
	int status = 0;

	fflush(stdout);
	child = must(fork(), "fork");
	if (child == 0) {
		alarm(5);
		errno = UNTOUCHED;
		printf("io_submit(%s) = %ld\n", name, submit(context, n, blocks));
		exit(0);
	}
	waitpid(child, &status, 0);
	printf("  the child ended with %d\n", status);
}

static void wrong_pointers(unsigned long context, int fd)
{
	struct block good = sync_of(fd, FSYNC);
	struct block *null_block[] = { NULL }, *lost[] = { NOWHERE }, *second[] = { &good, NOWHERE };

	/* A child shares no AIO context: the kernel says EINVAL before it looks at the blocks. */
	in_a_child("NULL list", context, 1, NULL);
	in_a_child("list nowhere", context, 1, NOWHERE);
	in_a_child("block NULL", context, 1, null_block);
	in_a_child("block nowhere", context, 1, lost);
	in_a_child("second nowhere", context, 2, second);
	in_a_child("count -1", context, -1, null_block);
	in_a_child("count 0", context, 0, NULL);
	in_a_child("context 0", 0, 1, null_block);
}

static void all_cases(unsigned long context)
{
	struct block three[3];

	open_kinds();
	every_descriptor(context);
	wrong_fields(context, kinds[0].fd);
	with_eventfd(context, kinds[0].fd);
	many(context, kinds[0].fd);
	wrong_pointers(context, kinds[0].fd);
	three[0] = write_of(kinds[0].fd, RWF_SYNC_);
	three[1] = sync_of(kinds[0].fd, FDSYNC);
	three[2] = write_of(kinds[0].fd, 0);
	for (int i = 0; i < 23; i++)
		run(context, "again", three, 3);
}

#endif
