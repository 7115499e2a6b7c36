/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Every other way by which a program asks for durability, and the calls that change what a request
 * stands on:
 *
 *   range.c     sync_file_range, pwritev2
 *   memory.c    msync
 *   osync.c     O_SYNC and O_DSYNC: what becomes of them
 *   opens.c     the opens that ask for them
 *   writes.c    the writes that bring them back; fcntl
 *   async.c     aio_fsync, io_submit; uring.c: liburing
 *   mounts.c    umount, chroot
 *   restrict.c  prctl, seccomp
 *   next.c      the functions behind ours
 */
#ifndef SYNCLATER_ROUTES_H
#define SYNCLATER_ROUTES_H

#include "watch/watch.h"

#pragma GCC visibility push(hidden)

/* range.c */
long sl_hint(int fd, int64_t at, int64_t n, unsigned flags, uint64_t caller);
long sl_write_flagged(int fd, const void *iov, int n, int64_t at, int flags, uint64_t caller);

/* memory.c */
int sl_copy_in(void *to, const void *from, size_t len);
long sl_sync_memory(char *addr, size_t len, int flags, uint64_t caller);

/* osync.c */
void sl_tell_of_marks(void);
int sl_stays_real(int fd, const char *path);
long sl_mark(int fd, int flags, int is_new);
long sl_replace(int fd, int flags);
int sl_any_stripped(void);
int sl_wait_for_ledger(int fd);
int sl_mark_of(int fd);
long sl_written(int fd, long n, uint64_t caller);
long sl_write_call(int fd, int blocks, long nr, const long a[6], uint64_t caller);
int sl_mark_flags(int fd);
int sl_outside_with_marks(void);
long sl_open_at(int dir, const char *path, int flags, unsigned mode);
long sl_open_handle(int mount, void *handle, int flags);
long sl_file_control(long nr, int fd, int cmd, long arg);
long sl_open_how(int dir, const char *path, const void *how, size_t size);

/* mounts.c */
long sl_umount(long nr, const char *path, long flags);

/* restrict.c */
int sl_restricts(long nr, const long a[6]);
uint64_t *sl_begin_restricting(long nr, const long a[6]);
void sl_end_restricting(uint64_t *trying, long nr, const long a[6], long r);
long sl_may_restrict(long nr, const long a[6]);

/* async.c */
long sl_io_submit(long context, long n, void **blocks);

/* uring.c */
void sl_put_off_ring(void *ring);

/* next.c */
struct sl_next { /* of one function: for all, then for callers */
	struct sl_found {
		uint64_t key; /* of what it is true */
		void *function;
	} of[9];
};
void *sl_next(struct sl_next *next, const char *name, uint64_t caller);

#ifdef SL_GATE
/* As a gate takes them: what is not changed is made by the program's own instruction (SL_AT_SITE).
 */
long sl_gate_open(long nr, int dir, const char *path, int flags, unsigned mode);
long sl_gate_open_how(int dir, const char *path, const void *from, size_t size);
long sl_gate_open_handle(int mount, void *handle, int flags);
long sl_gate_write(int fd, long nr, const long a[6], uint64_t site);
long sl_gate_file_control(long nr, int fd, int cmd, long arg);
#endif

/* entry.c */
long sl_covered(long nr, long a, long b, long c, long d, long e, long f, uint64_t caller);

#pragma GCC visibility pop

#endif
