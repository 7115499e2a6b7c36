/* Makes each kind of sync request ROUNDS times in the directory given, and much that is none.
 *
 *     each_sync DIRECTORY ROUNDS PARTS
 *
 * PARTS are letters: c calls, w writes, a libaio, u io_uring, s io_uring without completions,
 * e errors; a 32-bit one knows c and w. How much of each it makes is written down in
 * tests/kernel.rs.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SIZE 4096
#define RWF_DSYNC_ 2
#define RWF_SYNC_  4

static int rounds, plain, dsync, osync;
static char bytes[SIZE];

static void must(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static int make(const char *name, int flags)
{
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);

	must(fd >= 0 && ftruncate(fd, 2 * SIZE) == 0, name);
	return fd;
}

static void calls(void)
{
	char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, plain, 0);

	must(map != MAP_FAILED, "mmap");
	for (int i = 0; i < rounds; i++) {
		must(write(plain, bytes, SIZE) == SIZE, "write");
		must(fsync(plain) == 0, "fsync");
		must(pwrite(plain, bytes, SIZE, 0) == SIZE, "pwrite");
		must(fdatasync(plain) == 0, "fdatasync");
		must(syncfs(plain) == 0, "syncfs");
		map[i % SIZE]++;
		must(msync(map, SIZE, MS_SYNC) == 0, "msync");
		must(msync(map, SIZE, MS_ASYNC) == 0, "msync");
		must(sync_file_range(plain, 0, SIZE, SYNC_FILE_RANGE_WRITE) == 0, "range");
		must(sync_file_range(plain, 0, 1, 0) == 0, "a look at the descriptor");
	}
}

static void writes(void)
{
	struct iovec v = { bytes, 512 };

	for (int i = 0; i < rounds; i++) {
		must(pwrite(dsync, bytes, 512, 0) == 512, "pwrite");
		must(pwritev(dsync, &v, 1, 0) == 512, "pwritev");
		must(lseek(osync, 0, SEEK_SET) == 0, "lseek");
		must(write(osync, bytes, 512) == 512, "write");
		must(writev(osync, &v, 1) == 512, "writev");
		must(syscall(SYS_pwritev2, plain, &v, 1, 0L, 0L, RWF_DSYNC_) == 512, "pwritev2");
		must(syscall(SYS_pwritev2, plain, &v, 1, 0L, 0L, RWF_SYNC_) == 512, "pwritev2");
		/* These ask for nothing. */
		must(syscall(SYS_pwritev2, plain, &v, 1, 0L, 0L, 0) == 512, "pwritev2");
		must(write(osync, bytes, 0) == 0, "write");
		must(pread(osync, bytes, 512, 0) == 512, "pread");
	}
}

#ifdef __x86_64__
static void aio(void)
{
	aio_context_t context = 0;
	struct iocb blocks[4] = {
		{ .aio_lio_opcode = IOCB_CMD_FSYNC, .aio_fildes = (uint32_t)plain },
		{ .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = (uint32_t)plain },
		{ .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = (uint32_t)dsync },
		{ .aio_lio_opcode = IOCB_CMD_FDSYNC, .aio_fildes = (uint32_t)plain },
	};
	struct iocb *list[4] = { &blocks[0], &blocks[1], &blocks[2], &blocks[3] };
	struct io_event done[4];

	for (int i = 1; i < 3; i++)
		blocks[i].aio_buf = (uintptr_t)bytes, blocks[i].aio_nbytes = 512;
	must(syscall(SYS_io_setup, 8, &context) == 0, "io_setup");
	for (int i = 0; i < rounds; i++) {
		must(syscall(SYS_io_submit, context, 4L, list) == 4, "io_submit");
		must(syscall(SYS_io_getevents, context, 4L, 4L, done, NULL) == 4, "io_getevents");
	}
	syscall(SYS_io_destroy, context);
}

static struct {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *entries;
	struct io_uring_cqe *completions;
} ring;

static char *map_ring(size_t size, off_t at)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, at);

	must(p != MAP_FAILED, "mmap of the ring");
	return p;
}

static void open_ring(void)
{
	struct io_uring_params p = { 0 };
	char *sq, *cq;

	ring.fd = (int)syscall(SYS_io_uring_setup, 8, &p);
	must(ring.fd >= 0, "io_uring_setup");
	sq = map_ring(p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
	cq = map_ring(p.cq_off.cqes + p.cq_entries * sizeof *ring.completions, IORING_OFF_CQ_RING);
	ring.entries = (void *)map_ring(p.sq_entries * sizeof *ring.entries, IORING_OFF_SQES);
	ring.sq_tail = (void *)(sq + p.sq_off.tail);
	ring.sq_mask = (void *)(sq + p.sq_off.ring_mask);
	ring.sq_array = (void *)(sq + p.sq_off.array);
	ring.cq_head = (void *)(cq + p.cq_off.head);
	ring.cq_tail = (void *)(cq + p.cq_off.tail);
	ring.cq_mask = (void *)(cq + p.cq_off.ring_mask);
	ring.completions = (void *)(cq + p.cq_off.cqes);
}

/* Submits one entry and waits for it. */
static int make_entry(struct io_uring_sqe entry)
{
	unsigned at = *ring.sq_tail & *ring.sq_mask, head;
	int result;

	ring.entries[at] = entry;
	ring.sq_array[at] = at;
	__atomic_store_n(ring.sq_tail, *ring.sq_tail + 1, __ATOMIC_RELEASE);
	must(syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1,
	     "io_uring_enter");
	head = *ring.cq_head;
	must(head != __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE), "a completion");
	result = ring.completions[head & *ring.cq_mask].res;
	__atomic_store_n(ring.cq_head, head + 1, __ATOMIC_RELEASE);
	return result;
}

/* Syncs that post no completion, each before an entry that does. */
static void silent(void)
{
	struct io_uring_sqe sync = { .opcode = IORING_OP_FSYNC, .fd = plain,
				     .flags = IOSQE_CQE_SKIP_SUCCESS };
	struct io_uring_sqe nothing = { .opcode = IORING_OP_NOP };
	unsigned at;

	for (int i = 0; i < rounds; i++) {
		at = *ring.sq_tail & *ring.sq_mask;
		ring.entries[at] = sync;
		ring.sq_array[at] = at;
		__atomic_store_n(ring.sq_tail, *ring.sq_tail + 1, __ATOMIC_RELEASE);
		must(syscall(SYS_io_uring_enter, ring.fd, 1, 0, 0, NULL, 0) == 1, "enter");
		must(make_entry(nothing) == 0, "nothing");
	}
}

static struct io_uring_sqe write_of(int fd, int rw_flags)
{
	return (struct io_uring_sqe){ .opcode = IORING_OP_WRITE, .fd = fd, .len = 512,
				      .addr = (uintptr_t)bytes, .rw_flags = rw_flags };
}

static void uring(void)
{
	struct io_uring_sqe sync = { .opcode = IORING_OP_FSYNC, .fd = plain };
	struct io_uring_sqe data = { .opcode = IORING_OP_FSYNC, .fd = plain,
				     .fsync_flags = IORING_FSYNC_DATASYNC };
	struct io_uring_sqe range = { .opcode = IORING_OP_SYNC_FILE_RANGE, .fd = plain,
				      .sync_range_flags = SYNC_FILE_RANGE_WRITE };
	struct io_uring_sqe fixed = { .opcode = IORING_OP_FSYNC, .fd = 0,
				      .flags = IOSQE_FIXED_FILE };
	struct io_uring_sqe fixed_write = write_of(1, 0);
	int files[2] = { plain, dsync };

	fixed_write.flags = IOSQE_FIXED_FILE;
	must(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, files, 2) == 0,
	     "io_uring_register");
	for (int i = 0; i < rounds; i++) {
		must(make_entry(write_of(plain, 0)) == 512, "write");
		must(make_entry(sync) == 0, "fsync");
		must(make_entry(data) == 0, "fdatasync");
		must(make_entry(range) == 0, "sync_file_range");
		must(make_entry(fixed) == 0, "fsync of a fixed file");
		must(make_entry(write_of(dsync, 0)) == 512, "O_DSYNC");
		must(make_entry(write_of(plain, RWF_SYNC_)) == 512, "RWF_SYNC");
		must(make_entry(fixed_write) == 512, "O_DSYNC of a fixed file");
	}
}
static void errors(void)
{
	struct io_uring_sqe bad = { .opcode = IORING_OP_FSYNC, .fd = 999 };
	int pair[2];

	must(pipe(pair) == 0, "pipe");
	for (int i = 0; i < rounds; i++) {
		must(fsync(999) == -1 && errno == EBADF, "fsync");
		must(fdatasync(pair[0]) == -1 && errno == EINVAL, "fdatasync");
		must(make_entry(bad) == -EBADF, "fsync of no file");
	}
}
#else
static void open_ring(void) {}
static void aio(void) {}
static void uring(void) {}
static void errors(void) {}
static void silent(void) {}
#endif

int main(int count, char **arguments)
{
	const char *parts;

	must(count == 4 && chdir(arguments[1]) == 0, "usage: each_sync DIRECTORY ROUNDS PARTS");
	parts = arguments[3];
	rounds = atoi(arguments[2]);
	plain = make("plain", 0);
	dsync = make("dsync", O_DSYNC);
	osync = make("osync", O_SYNC);
	open_ring();
	if (strchr(parts, 'c'))
		calls();
	if (strchr(parts, 'w'))
		writes();
	if (strchr(parts, 'a'))
		aio();
	if (strchr(parts, 'u'))
		uring();
	if (strchr(parts, 'e'))
		errors();
	if (strchr(parts, 's'))
		silent();
	return 0;
}
