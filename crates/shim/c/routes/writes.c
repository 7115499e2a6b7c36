/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Writes, each of which is a sync request where the descriptor has lost its O_SYNC (osync.c), and
 * fcntl, which shows the flag and not the mark.
 */
#include "routes/routes.h"
#include <stdarg.h>

#define F_GETFL_      3
#define F_SETLKW_     7
#define F_OFD_SETLKW_ 38
#define F_SETLEASE_   1024
#define F_NOTIFY_     1026

/* Cancellable while they block, then the request that a mark implies. */

static ALWAYS_INLINE long make_write(int blocks, long nr, const long a[6])
{
	return blocks ? sl_cancellable(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		      : raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* A write to a descriptor whose O_SYNC the kernel keeps is a request by itself. */
static NOINLINE long write_noted(int fd, int blocks, long nr, const long a[6], uint64_t caller,
				 unsigned kind)
{
	struct verdict v = { .kept = SL_KEPT_OSYNC };
	struct note *n = NOTE(kind, fd, caller);
	long r;

	if (n) {
		sl_count_request(0);
		sl_note_real(n);
	}
	r = make_write(blocks, nr, a);
	if (!n)
		return r;
	if (is_error(r))
		sl_count_failed(0);
	else
		sl_count_kept(SL_KEPT_OSYNC, 0);
	n->e.bytes += is_error(r) ? 0 : (uint64_t)r;
	sl_note_end(n, &v, is_error(r) ? SL_DONE_NOTHING : SL_DONE_REAL, r);
	return r;
}

/* Such a write is seen only while a recording is made, since to ask for the flag costs as much as a
 * small write. */
static NOINLINE long write_recorded(int fd, int blocks, long nr, const long a[6], uint64_t caller)
{
	long mode = raw3(NR_fcntl, fd, F_GETFL_, 0), r;

	if (!is_error(mode) && mode & O_DSYNC_ && !is_error(raw_sync_file_range(fd, 0, 1, 0)))
		return write_noted(fd, blocks, nr, a, caller,
				   mode & O_SYNC_BIT_ ? SL_KIND_OSYNC : SL_KIND_ODSYNC);
#ifdef SL_IO
	{
		uint64_t start = sl_io_start_on(fd);

		r = make_write(blocks, nr, a);
		sl_io_end(SL_KIND_WRITE, fd, start, r, caller);
	}
#else
	r = make_write(blocks, nr, a);
#endif
	return sl_written(fd, r, caller);
}

/* A write as pwritev2 makes it. */
struct flagged {
	struct {
		const void *from;
		size_t len;
	} one;
	const void *all;
	long count, at, high, flags;
};

/* 0 where pwritev2 cannot make it. */
static int is_flagged(struct flagged *w, long nr, const long a[6])
{
	int is_here = nr == NR_write || nr == NR_writev; /* where the file's offset is */

	w->all = (const void *)a[1], w->count = a[2];
	w->at = is_here ? -1 : a[3], w->high = is_here ? -1 : a[4], w->flags = 0;
	switch (nr) {
	case NR_write:
	case NR_pwrite64:
		w->one.from = (const void *)a[1], w->one.len = (size_t)a[2];
		w->all = &w->one, w->count = 1;
		if (a[2] < 0) /* too long for a vector */
			return 0;
		break;
	case NR_writev:
	case NR_pwritev:
		break;
	case NR_pwritev2:
		w->flags = a[5];
		return 1;
	default:
		return 0;
	}
	/* There -1 is no offset. */
	return is_here || w->at != -1 || (__SIZEOF_LONG__ == 4 && w->high != -1);
}

/* Whether all that may be put off is: the look before a write costs as much as a small write. */
static int is_relaxed(void)
{
	const struct sl_page *p;
	unsigned i;

	if (!sl_active() || sl.alone)
		return sl.alone;
	for (i = 0; i < sl.levels; i++) {
		p = sl.level[i].page;
		if (!LOAD(p->relax) || p->rule_count || LOAD(p->now_mask) & 1 || !sl_lease_runs(p))
			return 0;
	}
	return 1;
}

/* The RWF_ flags of what the kernel is to do with a write to FD, since its request is KEPT; 0 where
 * there is nothing to do, or where a filter of the program's own may forbid the call. */
static int real_flags(int fd, int *kept)
{
	int flags;

	if (LIKELY(!sl_any_stripped()) || is_relaxed() || sl_is_filtered())
		return 0;
	flags = sl_mark_flags(fd);
	*kept = SL_KEPT_NOW;
	if (!flags || !sl_active())
		return flags;
	if (sl_maybe_later())
		*kept = sl_would_keep(fd);
	return *kept == LATER ? 0 : flags;
}

/* The kernel makes the request with the write: it keeps the file for the whole call, while another
 * thread, or the handler of a signal that comes meanwhile, may give the number to another file. */
static NOINLINE long write_synced(int fd, int blocks, const struct flagged *w, int flags, int kept,
				  uint64_t caller)
{
	unsigned kind = flags & 4 /* RWF_SYNC */ ? SL_KIND_OSYNC : SL_KIND_ODSYNC;
	long high = __SIZEOF_LONG__ == 8 ? sl_cookie() : w->high;
	struct verdict v = { .kept = kept };
	struct note *n = sl_active() ? NOTE(kind, fd, caller) : NULL;
	long r;

	sl_note_real(n);
	if (blocks)
		r = sl_cancellable(NR_pwritev2, fd, (long)w->all, w->count, w->at, high,
				   w->flags | flags);
	else
		r = raw6(NR_pwritev2, fd, w->all, w->count, w->at, high, w->flags | flags);
	if (r <= 0 || !sl_active()) {
		sl_note_drop(n);
		return r;
	}
	sl_count_request(0);
	sl_count_kept(kept, 0);
	if (n)
		n->e.bytes += (uint64_t)r;
	sl_note_end(n, &v, SL_DONE_REAL, r);
	return r;
}

/* Whether such a write was not made: by a file that has no such call, or a filter that lets none
 * pass, whatever that says. A disk's errors are no such answers. */
static int is_refused(long r)
{
	return !r || r == -ENOSYS_ || r == -EOPNOTSUPP_ || r == -EPERM_ || r == -EACCES_ ||
	       r == -EINVAL_;
}

/* A write that the kernel is to sync, by FLAGS, since its request is KEPT. 0: it was not made. */
static NOINLINE long write_kept(int fd, int blocks, long nr, const long a[6], int flags, int kept,
				uint64_t caller)
{
	struct flagged w;
	long r = is_flagged(&w, nr, a) ? write_synced(fd, blocks, &w, flags, kept, caller) : 0;

	return is_refused(r) ? 0 : r;
}

/* A write of any kind: cancellable while it BLOCKS, then the request that a mark on FD implies. */
long sl_write_call(int fd, int blocks, long nr, const long a[6], uint64_t caller)
{
	int kept, flags = real_flags(fd, &kept);
	long r = UNLIKELY(flags) ? write_kept(fd, blocks, nr, a, flags, kept, caller) : 0;

	if (UNLIKELY(r))
		return r;
	if (UNLIKELY(sl_active() && sl_recording()))
		return write_recorded(fd, blocks, nr, a, caller);
	r = make_write(blocks, nr, a);
	return sl_written(fd, r, caller);
}

static ALWAYS_INLINE long write_to(int fd, int blocks, long nr, const long a[6], uint64_t caller)
{
	return sl_set(sl_is_plain() ? make_write(blocks, nr, a)
				    : sl_write_call(fd, blocks, nr, a, caller));
}

#define WRITE(fd, blocks, nr, ...) \
	write_to(fd, blocks, nr, (const long[6]){ __VA_ARGS__ }, CALLER)

EXPORT long write(int fd, const void *buf, size_t n)
{
	return WRITE(fd, 1, NR_write, fd, (long)buf, (long)n);
}

EXPORT long writev(int fd, const void *iov, int n)
{
	return WRITE(fd, 1, NR_writev, fd, (long)iov, n);
}

#if __SIZEOF_LONG__ == 8
#define AT(at) at, 0
#else
#define AT(at) (long)(at), (long)((int64_t)(at) >> 32)
#endif

EXPORT long pwrite(int fd, const void *buf, size_t n, long at)
{
	return WRITE(fd, 1, NR_pwrite64, fd, (long)buf, (long)n, AT(at));
}

EXPORT long pwrite64(int fd, const void *buf, size_t n, int64_t at)
{
	return WRITE(fd, 1, NR_pwrite64, fd, (long)buf, (long)n, AT(at));
}

EXPORT long pwritev(int fd, const void *iov, int n, long at)
{
	return WRITE(fd, 1, NR_pwritev, fd, (long)iov, n, AT(at));
}

EXPORT long pwritev64(int fd, const void *iov, int n, int64_t at)
{
	return WRITE(fd, 1, NR_pwritev, fd, (long)iov, n, AT(at));
}

EXPORT long copy_file_range(int in, int64_t *from, int out, int64_t *to, size_t n, unsigned flags)
{
	return WRITE(out, 1, NR_copy_file_range, in, (long)from, out, (long)to, (long)n,
		     (long)flags);
}

EXPORT long splice(int in, int64_t *from, int out, int64_t *to, size_t n, unsigned flags)
{
	/* No cancellation point in musl. */
	return WRITE(out, gnu_get_libc_version != NULL, NR_splice, in, (long)from, out, (long)to,
		     (long)n, (long)flags);
}

EXPORT long sendfile(int out, int in, long *from, size_t n)
{
	return WRITE(out, 0, NR_sendfile, out, in, (long)from, (long)n);
}

EXPORT long sendfile64(int out, int in, int64_t *from, size_t n)
{
#ifdef __i386__
	return WRITE(out, 0, NR_sendfile64, out, in, (long)from, (long)n);
#else
	return WRITE(out, 0, NR_sendfile, out, in, (long)from, (long)n);
#endif
}

/* The program takes the mark's place on FD: see the head of this file. */
static void give_up_mark(int fd)
{
	if (!sl_mark_of(fd))
		return;
	sl_marks.lost = 1;
	sl_slot_flag(SL_SLOT_MARK_LOST);
	raw3(NR_fcntl, fd, F_SETSIG_, 0);
}

#ifdef __i386__
/* F_OFD_* take a 64-bit struct flock only; fcntl() without LFS has the 32-bit one (as glibc does).
 */
struct lock32 {
	int16_t type, whence;
	int32_t start, len, pid;
};
struct lock64 {
	int16_t type, whence;
	int64_t start, len;
	int32_t pid;
} __attribute__((packed, aligned(4)));

static long ofd_lock(int fd, int cmd, struct lock32 *s)
{
	struct lock64 l = { s->type, s->whence, s->start, s->len, s->pid };
	long r = sl_cancellable(NR_fcntl, fd, cmd, (long)&l, 0, 0, 0);

	if (!is_error(r) && cmd == 36 /* F_OFD_GETLK */) {
		s->type = l.type, s->whence = l.whence, s->pid = l.pid;
		s->start = (int32_t)l.start, s->len = (int32_t)l.len;
	}
	return r;
}
#endif

/* F_GETOWN as the libcs ask for it: the kernel's own answer for a process group of small number
 * looks like an error. */
static int get_owner(int fd)
{
	struct {
		int type, pid;
	} owner;
	long r = raw3(NR_fcntl, fd, 16 /* F_GETOWN_EX */, &owner);

	if (is_error(r))
		return (int)sl_set(r);
	return owner.type == 2 /* F_OWNER_PGRP */ ? -owner.pid : owner.pid;
}

static ALWAYS_INLINE long file_control(long nr, int fd, int cmd, long arg)
{
	long r;

	switch (cmd) {
	case F_GETFL_:
		r = raw3(nr, fd, cmd, arg);
		return is_error(r) || !(sl.alone || sl_any_stripped()) ? r : r | sl_mark_of(fd);
	case F_GETSIG_:
		r = raw3(nr, fd, cmd, arg);
		return (sl.alone || sl_any_stripped()) && (r == SL_MARK_SYNC || r == SL_MARK_DSYNC) ? 0 : r;
	case F_SETSIG_:
	case F_SETLEASE_:
	case F_NOTIFY_:
		if (sl.alone || sl_any_stripped())
			give_up_mark(fd);
		return raw3(nr, fd, cmd, arg);
	case F_SETLKW_:
	case 14: /* F_SETLKW64 of a 32-bit program */
	case F_OFD_SETLKW_:
		return sl_cancellable(nr, fd, cmd, arg, 0, 0, 0);
	default:
		return raw3(nr, fd, cmd, arg);
	}
}

/* By number NR: on i386 there are two. */
long sl_file_control(long nr, int fd, int cmd, long arg) { return file_control(nr, fd, cmd, arg); }

#define FCNTL(name, ofd)                                           \
	EXPORT int name(int fd, int cmd, ...)                      \
	{                                                          \
		va_list more;                                      \
		long arg;                                          \
                                                                   \
		va_start(more, cmd);                               \
		arg = va_arg(more, long);                          \
		va_end(more);                                      \
		if (cmd == 9 /* F_GETOWN */)                       \
			return get_owner(fd);                      \
		ofd;                                               \
		return (int)sl_set(file_control(NR_fcntl, fd, cmd, arg)); \
	}

#ifdef __i386__
FCNTL(fcntl,
      if (cmd >= 36 && cmd <= 38) return (int)sl_set(ofd_lock(fd, cmd, (struct lock32 *)arg)))
#else
FCNTL(fcntl, (void)0)
#endif
FCNTL(fcntl64, (void)0)

#ifdef SL_GATE
/* The same in a program that ran before. */

/* A write to what is marked is made here, since a request follows it. */
long sl_gate_write(int fd, long nr, const long a[6], uint64_t site)
{
	if (!sl_any_stripped() || (!sl_mark_of(fd) && !sl_marks.lost))
		return SL_AT_SITE;
	return sl_write_call(fd, 0, nr, a, site);
}

long sl_gate_file_control(long nr, int fd, int cmd, long arg)
{
	switch (cmd) {
	case F_GETFL_:
	case F_GETSIG_:
	case F_SETSIG_:
	case F_SETLEASE_:
	case F_NOTIFY_:
		return sl_any_stripped() ? sl_file_control(nr, fd, cmd, arg) : SL_AT_SITE;
	default:
		return SL_AT_SITE;
	}
}
#endif
