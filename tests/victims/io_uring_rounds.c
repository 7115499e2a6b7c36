/* The same sync request through a ring, many times, each after a write: which one, is the second
 * argument. */
#ifdef VICTIM_HAS_LIBURING
#include <liburing.h>
#include "io_rounds.h"

static struct io_uring ring;
static int fd; /* also the number 0 of the registered files */
static unsigned entries, good;

/* The next entry; a write, unless it is made another one. */
static struct io_uring_sqe *next_entry(void)
{
	struct io_uring_sqe *e = io_uring_get_sqe(&ring);

	if (!e)
		die("a free entry");
	io_uring_prep_write(e, fd, "x", 1, entries++);
	return e;
}

static struct io_uring_sqe *next_fsync(void)
{
	struct io_uring_sqe *e = next_entry();

	io_uring_prep_fsync(e, fd, 0);
	return e;
}

static void plain(void)
{
	must((int)pwrite(fd, "x", 1, entries), "pwrite");
	next_fsync();
}

static void linked(void)
{
	next_entry()->flags |= IOSQE_IO_LINK;
	next_fsync();
}

static void drained(void)
{
	next_entry();
	next_fsync()->flags |= IOSQE_IO_DRAIN;
}

/* The write may still wait for its turn when the fsync is submitted, which then waits too. */
static void behind_a_drained_one(void)
{
	next_entry()->flags |= IOSQE_IO_DRAIN;
	must(io_uring_submit(&ring), "io_uring_submit");
	next_fsync();
}

static void registered(void)
{
	struct io_uring_sqe *e;

	must((int)pwrite(fd, "x", 1, entries), "pwrite");
	e = next_fsync();
	e->fd = 0;
	e->flags |= IOSQE_FIXED_FILE;
}

static void synced_write(void) { next_entry(); }

static const struct {
	const char *name;
	void (*round)(void);
} all[] = {
	{ "plain", plain },
	{ "linked", linked },
	{ "drained", drained },
	{ "behind a drained one", behind_a_drained_one },
	{ "registered", registered },
	{ "O_DSYNC", synced_write },
	{ "O_DSYNC, filtered", synced_write },
	{ "O_DSYNC, lost", synced_write },
	{ "O_DSYNC, lost, filtered", synced_write },
};

static void run(void (*round)(void))
{
	for (int i = 0; i < ROUNDS; i++) {
		unsigned before = entries;

		round();
		must(io_uring_submit(&ring), "io_uring_submit");
		for (; before < entries; before++) {
			struct io_uring_cqe *c;

			must(io_uring_wait_cqe(&ring, &c), "io_uring_wait_cqe");
			good += c->res >= 0;
			io_uring_cqe_seen(&ring, c);
		}
	}
}

int main(int count, char **arguments)
{
	const char *name = count > 2 ? arguments[2] : "plain";
	int r;

	begin(count, arguments);
	fd = open_for_rounds(name);
	r = io_uring_queue_init(8, &ring, 0);
	if (r < 0) {
		printf("no io_uring here: %d\n", r);
		return 0;
	}
	prepare_for_rounds(name, fd);
	must(io_uring_register_files(&ring, &fd, 1), "io_uring_register_files");
	for (unsigned i = 0; i < ARRAY_LEN(all); i++)
		if (!strcmp(name, all[i].name))
			run(all[i].round);
	printf("%d rounds, %u entries, %u good\n", ROUNDS, entries, good);
	return 0;
}
#else
#include "victim.h"

int main(int count, char **arguments)
{
	begin(count, arguments);
	printf("no liburing for this kind of program\n");
	return 0;
}
#endif
