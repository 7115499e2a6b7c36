/* The kernel's rings through liburing, whose functions return -errno and leave errno alone. */
#ifdef VICTIM_HAS_LIBURING
#include <liburing.h>
#include "victim.h"

#define RING_ENTRIES 64
#define FIRST        1000 /* the data of the first entry */

typedef struct io_uring_sqe entry;

static char text[512] = "what is to be written";

/* --- Entries ---------------------------------------------------------------------------------- */

static entry sync_of(int fd, unsigned flags)
{
	return (entry){ .opcode = IORING_OP_FSYNC, .fd = fd, .fsync_flags = flags };
}

static entry range_of(int fd, unsigned flags)
{
	return (entry){ .opcode = IORING_OP_SYNC_FILE_RANGE, .fd = fd, .len = 4096,
			.sync_range_flags = flags };
}

static entry write_of(int fd, unsigned rw_flags)
{
	return (entry){ .opcode = IORING_OP_WRITE, .fd = fd, .addr = (uintptr_t)text,
			.len = sizeof text, .rw_flags = (int)rw_flags };
}

static entry with(entry e, unsigned flags)
{
	e.flags |= (uint8_t)flags;
	return e;
}

#define RANGE_ALL \
	(SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER)

/* --- Ways to submit --------------------------------------------------------------------------- */

struct way {
	const char *name;
	int (*submit)(struct io_uring *ring, unsigned n);
};

static int only(struct io_uring *ring, unsigned n)
{
	(void)n;
	return io_uring_submit(ring);
}

static int and_wait(struct io_uring *ring, unsigned n) { return io_uring_submit_and_wait(ring, n); }

static int and_get_events(struct io_uring *ring, unsigned n)
{
	(void)n;
	return io_uring_submit_and_get_events(ring);
}

static int and_wait_timeout(struct io_uring *ring, unsigned n)
{
	struct __kernel_timespec limit = { .tv_sec = 5 };
	struct io_uring_cqe *first;

	return io_uring_submit_and_wait_timeout(ring, &first, n, &limit, NULL);
}

static const struct way ways[] = {
	{ "io_uring_submit", only },
	{ "io_uring_submit_and_wait", and_wait },
	{ "io_uring_submit_and_get_events", and_get_events },
	{ "io_uring_submit_and_wait_timeout", and_wait_timeout },
};

/* --- A run ------------------------------------------------------------------------------------ */

struct completion {
	int data, res;
	unsigned flags;
};

static int by_data(const void *a, const void *b)
{
	return ((const struct completion *)a)->data - ((const struct completion *)b)->data;
}

/* Waits for N completions and shows them in the order of their data, and whether more came. */
static void show_completions(struct io_uring *ring, unsigned n)
{
	struct completion got[RING_ENTRIES];
	unsigned i;

	for (i = 0; i < n; i++) {
		struct __kernel_timespec limit = { .tv_sec = 5 };
		struct io_uring_cqe *c;
		int r = io_uring_wait_cqe_timeout(ring, &c, &limit);

		if (r < 0) {
			printf("  nothing more came: %d\n", r);
			break;
		}
		got[i] = (struct completion){ (int)c->user_data, c->res, c->flags };
		io_uring_cqe_seen(ring, c);
	}
	qsort(got, i, sizeof got[0], by_data);
	for (unsigned k = 0; k < i; k++)
		printf("  data %d res %d flags %u\n", got[k].data, got[k].res, got[k].flags);
	if (io_uring_cq_ready(ring))
		printf("  and %u more\n", io_uring_cq_ready(ring));
}

static void queue(struct io_uring *ring, const entry *entries, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		entry *e = io_uring_get_sqe(ring);

		if (!e)
			die("a free entry");
		*e = entries[i];
		e->user_data = FIRST + i;
	}
}

/* The kernel stops behind an entry that it refuses: the rest takes another call. SILENT entries
 * complete without saying so. */
static void submit_all(const struct way *way, struct io_uring *ring, const char *name, unsigned n,
		       unsigned silent)
{
	while (n) {
		int taken;

		errno = UNTOUCHED;
		taken = way->submit(ring, n - silent);
		show(way->name, name, taken, errno);
		if (taken <= 0)
			return;
		show_completions(ring, (unsigned)taken - silent);
		n -= (unsigned)taken;
	}
}

static void run_by(const struct way *way, struct io_uring *ring, const char *name,
		   const entry *entries, unsigned n, unsigned silent)
{
	queue(ring, entries, n);
	submit_all(way, ring, name, n, silent);
}

static void run(struct io_uring *ring, const char *name, const entry *entries, unsigned n)
{
	run_by(&ways[0], ring, name, entries, n, 0);
}

static void read_back(const char *name, int fd, long at)
{
	char got[sizeof text] = "";

	CALL("pread", name, pread(fd, got, sizeof got, at));
	printf("  it is what was written: %d\n", !memcmp(got, text, sizeof got));
}

/* A ring, or none where this kernel does not give one with FLAGS. */
static int make_ring(struct io_uring *ring, const char *name, unsigned flags)
{
	struct io_uring_params p = { .flags = flags, .sq_thread_idle = 20 };
	int r = io_uring_queue_init_params(RING_ENTRIES, ring, &p);

	if (r < 0)
		printf("no %s here: %d\n", name, r);
	return r == 0;
}

/* --- Cases ------------------------------------------------------------------------------------ */

/* liburing's own way to fill an entry. */
static void prepared(struct io_uring *ring, int fd)
{
	io_uring_prep_write(io_uring_get_sqe(ring), fd, text, sizeof text, 0);
	CALL("io_uring_submit", "io_uring_prep_write", io_uring_submit(ring));
	show_completions(ring, 1);
	io_uring_prep_fsync(io_uring_get_sqe(ring), fd, 0);
	CALL("io_uring_submit", "io_uring_prep_fsync", io_uring_submit(ring));
	show_completions(ring, 1);
	read_back("written by the ring", fd, 0);
	CALL("pwrite", "file", pwrite(fd, text, sizeof text, 512));
	io_uring_prep_fsync(io_uring_get_sqe(ring), fd, IORING_FSYNC_DATASYNC);
	CALL("io_uring_submit", "IORING_FSYNC_DATASYNC", io_uring_submit(ring));
	show_completions(ring, 1);
	read_back("written by pwrite", fd, 512);
	io_uring_prep_sync_file_range(io_uring_get_sqe(ring), fd, 4096, 0, RANGE_ALL);
	CALL("io_uring_submit", "io_uring_prep_sync_file_range", io_uring_submit(ring));
	show_completions(ring, 1);
	CALL("io_uring_submit", "nothing", io_uring_submit(ring));
}

static void every_descriptor(struct io_uring *ring)
{
	EACH_KIND(k) {
		entry all[] = { sync_of(k->fd, 0), sync_of(k->fd, IORING_FSYNC_DATASYNC),
				range_of(k->fd, RANGE_ALL), range_of(k->fd, 0) };

		run(ring, k->name, all, ARRAY_LEN(all));
	}
}

/* Fields that the kernel wants to be 0 in a sync, and values that it does not know. */
static void wrong_fields(struct io_uring *ring, const char *kind, entry good)
{
	entry e[12];

	for (unsigned i = 0; i < ARRAY_LEN(e); i++)
		e[i] = good;
	e[0].fsync_flags = 8;
	e[1].fsync_flags |= 1u << 31;
	e[2].addr = (uintptr_t)text;
	e[3].buf_index = 1;
	e[4].splice_fd_in = 1;
	e[5].ioprio = 1;
	e[6].personality = 99;
	e[7].flags = 1 << 7;
	e[8].flags = IOSQE_BUFFER_SELECT;
	e[9].off = (uint64_t)-1, e[9].len = 0;
	e[10].off = INT64_MAX, e[10].len = 4096;
	e[11].off = 4096, e[11].len = 4096;
	for (unsigned i = 0; i < ARRAY_LEN(e); i++) {
		char name[64];

		snprintf(name, sizeof name, "%s, wrong field %u", kind, i);
		run(ring, name, &e[i], 1);
	}
	good.flags = IOSQE_ASYNC;
	run(ring, "IOSQE_ASYNC", &good, 1);
	good.opcode = 250;
	run(ring, "unknown opcode", &good, 1);
}

/* 37 entries by each way; then with one in between that completes with an error, and with one that
 * the kernel refuses to take. */
static void many(struct io_uring *ring, int fd)
{
	entry e[37];

	for (unsigned w = 0; w < ARRAY_LEN(ways); w++) {
		for (unsigned i = 0; i < ARRAY_LEN(e); i++)
			e[i] = i % 3 ? sync_of(fd, i % 2) : write_of(fd, 0);
		e[7] = range_of(fd, RANGE_ALL);
		run_by(&ways[w], ring, "37 entries", e, ARRAY_LEN(e), 0);
		run_by(&ways[w], ring, "one entry", e + 1, 1, 0);
	}
	e[17].fd = 999;
	run(ring, "37 entries, one fails", e, ARRAY_LEN(e));
	e[17] = sync_of(fd, 0), e[17].ioprio = 99;
	run(ring, "37 entries, one is refused", e, ARRAY_LEN(e));
}

static void chains(struct io_uring *ring, int fd, int closed)
{
	entry w = with(write_of(fd, 0), IOSQE_IO_LINK), s = sync_of(fd, 0);
	entry f = with(s, IOSQE_IO_LINK), bad = with(write_of(closed, 0), IOSQE_IO_LINK);
	entry hard = with(write_of(closed, 0), IOSQE_IO_HARDLINK);
	entry lost = with(sync_of(closed, 0), IOSQE_IO_LINK);

	run(ring, "write -> fsync", (entry[]){ w, s }, 2);
	read_back("write -> fsync", fd, 0);
	run(ring, "write -> fsync -> fsync", (entry[]){ w, f, s }, 3);
	run(ring, "write -> fsync, fsync", (entry[]){ w, s, s }, 3);
	run(ring, "fsync -> write", (entry[]){ f, write_of(fd, 0) }, 2);
	run(ring, "fsync ->", (entry[]){ f }, 1);
	run(ring, "bad write -> fsync", (entry[]){ bad, s }, 2);
	run(ring, "bad write => fsync", (entry[]){ hard, s }, 2);
	run(ring, "bad fsync -> fsync", (entry[]){ lost, s }, 2);
	run(ring, "fsync -> bad fsync -> fsync", (entry[]){ f, lost, s }, 3);
	run(ring, "write -> range", (entry[]){ w, range_of(fd, RANGE_ALL) }, 2);
	run(ring, "write -> bad range", (entry[]){ w, range_of(fd, 8) }, 2);
}

/* A drained entry waits for all before it, and all behind it wait for it. */
static void drains(struct io_uring *ring, int fd)
{
	entry s = sync_of(fd, 0), w = write_of(fd, 0);
	entry drained_s = with(s, IOSQE_IO_DRAIN), drained_w = with(w, IOSQE_IO_DRAIN);

	run(ring, "write, drained fsync", (entry[]){ w, drained_s }, 2);
	run(ring, "drained fsync", &drained_s, 1);
	run(ring, "drained write, fsync", (entry[]){ drained_w, s }, 2);
	run(ring, "drained write, bad fsync", (entry[]){ drained_w, sync_of(-1, 0) }, 2);
	run(ring, "fsync", &s, 1);
}

static void registered_files(struct io_uring *ring, int fd, int to_write)
{
	const int files[] = { fd, -1, to_write };
	entry e[6];

	CALL("io_uring_register_files", "", io_uring_register_files(ring, files, ARRAY_LEN(files)));
	for (unsigned i = 0; i < 4; i++)
		e[i] = with(sync_of((int)i, i == 3), IOSQE_FIXED_FILE);
	e[3].fd = 0;
	e[4] = with(range_of(0, RANGE_ALL), IOSQE_FIXED_FILE);
	e[5] = with(sync_of(99, 0), IOSQE_FIXED_FILE);
	run(ring, "registered files", e, ARRAY_LEN(e));
	e[0] = with(write_of(0, 0), IOSQE_FIXED_FILE | IOSQE_IO_LINK);
	run(ring, "write -> fsync of a registered file", (entry[]){ e[0], e[3] }, 2);
	CALL("io_uring_unregister_files", "", io_uring_unregister_files(ring));
}

/* Writes to a file that was opened with O_SYNC or O_DSYNC, and such that ask for it themselves. */
static void synced_writes(struct io_uring *ring, const char *name, int flags, int fd)
{
	struct iovec part = { text, sizeof text };
	entry e[] = { write_of(fd, 0), write_of(fd, RWF_DSYNC_), write_of(fd, RWF_SYNC_),
		      write_of(fd, 0), write_of(fd, 0), write_of(fd, 0), write_of(fd, 1 << 20) };

	for (unsigned i = 0; i < ARRAY_LEN(e); i++)
		e[i].off = i * sizeof text;
	e[3].opcode = IORING_OP_WRITEV, e[3].addr = (uintptr_t)&part, e[3].len = 1;
	e[4].opcode = IORING_OP_WRITE_FIXED;
	e[5].addr = (uintptr_t)NOWHERE;
	CALL("io_uring_register_buffers", name, io_uring_register_buffers(ring, &part, 1));
	run(ring, name, e, ARRAY_LEN(e));
	CALL("io_uring_unregister_buffers", name, io_uring_unregister_buffers(ring));
	for (int i = 0; i < 5; i++)
		read_back(name, fd, i * (long)sizeof text);
	printf("  its flags: %d\n", (fcntl(fd, F_GETFL) & SYNCS) == flags);
	CALL("lseek", name, lseek(fd, 0, SEEK_END));
}

static int opened_by_ring(struct io_uring *ring, const char *name, int flags)
{
	entry e = { .opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (uintptr_t)in_work(name),
		    .len = 0600, .open_flags = (uint32_t)flags };
	struct io_uring_cqe *c;
	int lowest = lowest_free(), fd;

	queue(ring, &e, 1);
	CALL("io_uring_submit", "openat", io_uring_submit(ring));
	must(-abs(io_uring_wait_cqe(ring, &c)), "io_uring_wait_cqe");
	fd = show_fd("openat", name, lowest, c->res, UNTOUCHED);
	io_uring_cqe_seen(ring, c);
	return fd;
}

static void every_o_sync(struct io_uring *ring)
{
	static const int flags[] = { 0, O_DSYNC, O_SYNC };
	static const char *const names[] = { "plain", "O_DSYNC", "O_SYNC" };

	for (unsigned i = 0; i < ARRAY_LEN(flags); i++) {
		int fd = must(open(in_work(names[i]), O_CREAT | O_RDWR | flags[i], 0600), "open");
		char name[64];

		synced_writes(ring, names[i], flags[i], fd);
		close(fd);
		snprintf(name, sizeof name, "%s by the ring", names[i]);
		fd = opened_by_ring(ring, name, O_CREAT | O_RDWR | flags[i]);
		synced_writes(ring, name, flags[i], fd);
		close(fd);
	}
}

/* Entries that say nothing unless they fail: the one that is linked behind tells when they are
 * done, and is itself silent where they fail. */
static void silent(int fd, int closed)
{
	struct io_uring ring;
	entry s = with(sync_of(fd, 0), IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK);
	entry bad = with(sync_of(closed, 0), IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK);
	entry nop = { .opcode = IORING_OP_NOP };

	if (!make_ring(&ring, "ring for silent entries", 0))
		return;
	run_by(&ways[0], &ring, "silent fsync", (entry[]){ s, nop }, 2, 1);
	run_by(&ways[1], &ring, "silent fsyncs", (entry[]){ s, s, nop }, 3, 2);
	run_by(&ways[0], &ring, "silent fsync fails", (entry[]){ bad, nop }, 2, 1);
	io_uring_queue_exit(&ring);
}

/* A ring with FLAGS: whatever it does with a NOP, it must do with a sync what it always does. */
static void special_ring(const char *name, unsigned flags, int fd)
{
	struct io_uring ring;
	entry e[] = { sync_of(fd, 0), sync_of(fd, IORING_FSYNC_DATASYNC), range_of(fd, RANGE_ALL) };

	if (!make_ring(&ring, name, flags))
		return;
	queue(&ring, e, ARRAY_LEN(e));
	if (flags & IORING_SETUP_SQPOLL) { /* what it returns is a matter of luck */
		io_uring_submit(&ring);
		show_completions(&ring, ARRAY_LEN(e));
	} else {
		submit_all(&ways[0], &ring, name, ARRAY_LEN(e), 0);
	}
	io_uring_queue_exit(&ring);
}

/* Not every shared liburing has its functions for these two. */
static long register_with(struct io_uring *ring, unsigned what, void *list, unsigned n)
{
	return syscall(SYS_io_uring_register, ring->ring_fd, what, list, n);
}

/* A ring that takes writes and fsyncs, and nothing else. */
static void restricted_ring(int fd)
{
	struct io_uring_restriction may[] = {
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_FSYNC },
		{ .opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = IORING_OP_WRITE },
	};
	struct io_uring ring;
	entry e[] = { sync_of(fd, 0), write_of(fd, 0), sync_of(fd, IORING_FSYNC_DATASYNC) };

	if (!make_ring(&ring, "ring that begins disabled", IORING_SETUP_R_DISABLED))
		return;
	CALL("io_uring_register", "IORING_REGISTER_RESTRICTIONS",
	     register_with(&ring, IORING_REGISTER_RESTRICTIONS, may, ARRAY_LEN(may)));
	queue(&ring, e, 1);
	CALL("io_uring_submit", "disabled", io_uring_submit(&ring));
	CALL("io_uring_register", "IORING_REGISTER_ENABLE_RINGS",
	     register_with(&ring, IORING_REGISTER_ENABLE_RINGS, NULL, 0));
	CALL("io_uring_submit", "enabled", io_uring_submit(&ring));
	show_completions(&ring, 1);
	run(&ring, "allowed", e, ARRAY_LEN(e));
	e[0] = range_of(fd, RANGE_ALL);
	run(&ring, "not allowed", e, 1);
	io_uring_queue_exit(&ring);
}

int main(int count, char **arguments)
{
	struct io_uring ring;
	int fd;

	begin(count, arguments);
	if (!make_ring(&ring, "io_uring", 0))
		return 0;
	open_kinds();
	fd = kinds[0].fd;
	prepared(&ring, fd);
	every_descriptor(&ring);
	wrong_fields(&ring, "fsync", sync_of(fd, 0));
	wrong_fields(&ring, "range", range_of(fd, RANGE_ALL));
	many(&ring, fd);
	registered_files(&ring, fd, kinds[2].fd);
	every_o_sync(&ring);
	chains(&ring, fd, 999);
	silent(fd, 999);
	special_ring("ring of large entries", IORING_SETUP_SQE128, fd);
	special_ring("ring of large completions", IORING_SETUP_CQE32, fd);
	special_ring("ring with a thread", IORING_SETUP_SQPOLL, fd);
	special_ring("ring that polls", IORING_SETUP_IOPOLL, fd);
	special_ring("ring that submits all", IORING_SETUP_SUBMIT_ALL, fd);
	restricted_ring(fd);
	drains(&ring, fd);
	io_uring_queue_exit(&ring);
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
