/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Asynchronous requests: POSIX AIO's aio_fsync, libaio's io_submit, liburing's submit functions.
 *
 * Whatever is put off here must still complete as the program expects: after what it queued before,
 * with result 0, with the notification that it asked for.
 */
#include "shim.h"

#define RTLD_NEXT_ ((void *)-1l)

/* libaio: struct iocb of linux/aio_abi.h, the same on 32 and 64 bit. */
struct iocb {
	uint64_t data;
	uint32_t key, rw_flags;
	uint16_t opcode;
	int16_t reqprio;
	uint32_t fd;
	uint64_t buf, nbytes;
	int64_t offset;
	uint64_t reserved;
	uint32_t flags, resfd;
};
#define IOCB_PREAD  0
#define IOCB_PWRITE 1
#define IOCB_FSYNC  2
#define IOCB_FDSYNC 3
#define BATCH 32

/* Decides for one block and changes it for the time of the submission. Returns what it was. */
static struct iocb put_off(struct iocb *b)
{
	struct iocb was = { .opcode = b->opcode, .rw_flags = b->rw_flags, .buf = b->buf,
			    .nbytes = b->nbytes };
	int sync = b->opcode == IOCB_FSYNC || b->opcode == IOCB_FDSYNC;
	int flags = b->rw_flags & 6; /* RWF_DSYNC, RWF_SYNC */
	struct subject s = { (int)b->fd, NULL, 0, 0 };
	struct verdict v = { .kept = LATER };
	long mode;

	if (!sync && !flags)
		return was;
	mode = raw3(NR_fcntl, b->fd, 3 /* F_GETFL */, 0);
	if (is_error(mode) || is_error(raw_sync_file_range((int)b->fd, 0, 1, 0)))
		return was; /* the kernel gives the error */
	if (sl.levels) {
		sl_count_request(0);
		sl_decide(&v, &s);
	}
	if (v.kept != LATER || v.error) {
		sl_count_kept(v.error ? (int)SL_KEPT_AIO : v.kept);
		return was;
	}
	sl_owe(&v);
	if (sync) { /* a transfer of nothing, in the direction that the descriptor allows */
		b->opcode = (mode & O_ACCMODE_) == O_WRONLY_ ? IOCB_PWRITE : IOCB_PREAD;
		b->nbytes = 0;
	} else {
		b->rw_flags &= ~6u;
	}
	return was;
}

static void put_back(struct iocb *b, const struct iocb *was)
{
	b->opcode = was->opcode;
	b->rw_flags = was->rw_flags;
	b->nbytes = was->nbytes;
}

/* Submits up to BATCH blocks. The kernel copies each while the call runs, so they are put back. */
static long submit_batch(long context, long n, struct iocb **blocks)
{
	struct iocb was[BATCH];
	long i, r;

	for (i = 0; i < n; i++)
		was[i] = put_off(blocks[i]);
	r = raw3(NR_io_submit, context, n, blocks);
	for (i = 0; i < n; i++)
		put_back(blocks[i], &was[i]);
	return r;
}

/* As io_submit(2): how many were taken, or -errno where not even the first was. */
long sl_io_submit(long context, long n, void **blocks)
{
	long done = 0, r = 0;

	if (!sl_active() || n <= 0)
		return raw3(NR_io_submit, context, n, blocks);
	while (done < n) {
		long batch = n - done < BATCH ? n - done : BATCH;

		r = submit_batch(context, batch, (struct iocb **)blocks + done);
		if (is_error(r))
			break;
		done += r;
		if (r < batch)
			break;
	}
	return done ? done : r;
}

/* libaio's function returns -errno itself and leaves errno alone. */
EXPORT int io_submit(void *context, long n, void **blocks)
{
	return (int)sl_io_submit((long)context, n, blocks);
}
