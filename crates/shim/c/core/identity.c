/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What lies behind a descriptor or a name: its kind, its number, its mount, as the kernel says it
 * now; whatever it said once counts for nothing.
 */
#include "core/core.h"

static uint64_t in_ns(const struct statx_time *t)
{
	return (uint64_t)t->seconds * 1000000000u + t->ns;
}

long sl_what_at(int dir, const char *path, int at, uint32_t mask, struct sl_what *w)
{
	struct statx_answer *x = ROOM(sizeof *x);
	long r = path ? raw5(NR_statx, dir, path, at | 0x4000 /* DONT_SYNC */, mask, x)
		      : sl_statx(dir, mask, x);

	if (!is_error(r)) {
		w->mode = x->mode;
		w->uid = x->uid;
		w->inode = x->inode;
		w->size = x->size;
		w->dev = (uint64_t)x->dev_major << 32 | x->dev_minor;
		w->mount = x->mask & STATX_ANY_MNT_ID_ ? x->mount : 0;
		w->born_ns = in_ns(&x->born);
		w->modified_ns = in_ns(&x->modified);
		w->changed_ns = in_ns(&x->changed);
	}
	sl_leave(x);
	return r;
}

/* What FD is; with an answer of statx's that lies on no small stack. */
long sl_place(int fd, struct place *p)
{
	struct statx_answer *x = ROOM(sizeof *x);
	long r = sl_place_of(fd, p, x);

	sl_leave(x);
	return r;
}

/* The file type (S_IFMT) of PATH below DIR, with AT_ flags AT, or -errno. */
long sl_type(int dir, const char *path, int at)
{
	struct statx_answer *x = ROOM(sizeof *x);
	long r = raw5(NR_statx, dir, path, at | 0x4000 /* DONT_SYNC */, STATX_TYPE_, x);

	r = is_error(r) ? r : (long)(x->mode & S_IFMT_);
	sl_leave(x);
	return r;
}

/* The type of the file system that FD lies on, as statfs(2) has it, or 0. */
long sl_magic_of(int fd)
{
	enum { LEAST = 128 };
	long *statfs = ROOM(LEAST);
	long magic = is_error(raw2(NR_fstatfs, fd, statfs)) ? 0 : statfs[0];

	sl_leave(statfs);
	return magic;
}

/* Another file may be open as FD now, or one that cannot be synced (O_PATH); -1: as any. */
void sl_forget(int fd)
{
	unsigned i = fd < 0 ? 0 : (unsigned)fd % SOUND_MAX;
	unsigned end = fd < 0 ? SOUND_MAX : i + 1;

	for (; sl_mine && i < end; i++)
		__atomic_store_n(&sl_mine->sound[i], 0, __ATOMIC_RELAXED);
}
