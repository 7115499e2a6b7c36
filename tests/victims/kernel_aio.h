/* The kernel's AIO as linux/aio_abi.h has it, which not every libc brings. */
#ifndef KERNEL_AIO_H
#define KERNEL_AIO_H

#include "victim.h"

struct block { /* struct iocb */
	uint64_t data;
	uint32_t key, rw_flags;
	uint16_t opcode;
	int16_t priority;
	uint32_t fd;
	uint64_t buf, bytes;
	int64_t offset;
	uint64_t reserved;
	uint32_t flags, event_fd;
};

struct event { /* struct io_event */
	uint64_t data, obj;
	int64_t res, res2;
};

enum { PREAD = 0, PWRITE = 1, FSYNC = 2, FDSYNC = 3, NOOP = 6 };
#define BLOCK_EVENTFD 1 /* IOCB_FLAG_RESFD */

#endif
