/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * msync: which files lie in a range of memory, and on which file systems.
 *
 * A bad argument fails as in the kernel: we ask it by MS_ASYNC, which checks the same and writes
 * nothing. What the range holds is asked by PROCMAP_QUERY (Linux 6.11), else read from
 * /proc/self/maps; what cannot be told is made for real.
 */
#include "routes/routes.h"

#define MS_ASYNC_ 1
#define MS_SYNC_  4
/* Bytes of a path, with its end, where /proc/self/maps is read, and where the stack has to do. A
 * mapping with a longer one is synced for real. */
#define NAME_MAX_    1024
#define QUERY_LEAST_ 616

#define MAP_QUERY_MAX   64

/* Copies LEN bytes of the program's, whose pointers are for the kernel to judge. 1, or 0 where FROM
 * cannot be read; -1 where that cannot be told: some sandboxes forbid the call. */
int sl_copy_in(void *to, const void *from, size_t len)
{
	const struct {
		void *base;
		size_t len;
	} local = { to, len }, remote = { (void *)(uintptr_t)from, len };

	long r = raw6(NR_process_vm_readv, raw0(NR_getpid), &local, 1, &remote, 1, 0);

	if (r == (long)len)
		return 1;
	return r > 0 || r == -EFAULT_ ? 0 : -1;
}

/* What one msync owes, range by range. */
struct range {
	struct verdict *v;
	uint64_t from, to;
	int seen; /* a file was in it */
};

/* Whether what is mapped is a regular file. A mapping of a block device shows the superblock and
 * the inode of its node, so the type is asked by the name. That leads to the same file where the
 * inode is the same: the mapping keeps it. (Mappings do not show a subvolume's number.) */
static int is_file(const char *name, uint64_t dev, uint64_t inode)
{
	struct sl_what w;
	int at = 0x800 | 0x100; /* NO_AUTOMOUNT, SYMLINK_NOFOLLOW */

	if (is_error(sl_what_at(AT_FDCWD_, name, at, STATX_INO_ | STATX_TYPE_, &w)))
		return 0;
	return (w.mode & S_IFMT_) == S_IFREG_ && w.inode == inode &&
	       (w.dev == dev || !(w.dev >> 32 | dev >> 32));
}

/* Decides for the part of the range that lies on one file. Returns LATER or why not. */
static int decide_part(struct range *r, uint32_t major, uint32_t minor, uint64_t inode,
		       const char *name)
{
	uint64_t dev = (uint64_t)major << 32 | minor;

	if (!is_file(name, dev, inode))
		return r->v->kept = SL_KEPT_UNKNOWN;
	sl_decide_by_number(r->v, name, dev);
	if (r->v->kept != LATER)
		return r->v->kept;
	r->seen = 1;
	if (!r->v->error)
		sl_owe(r->v);
	return LATER;
}

/* By one call a mapping, with Q, behind which there is room for a name, SIZE bytes together.
 * Returns LATER, why not, or -errno where the kernel has no such call. */
static ALWAYS_INLINE long by_query(struct range *r, long maps, struct map_query *q, uint32_t size)
{
	char *name = (char *)(q + 1);
	uint64_t at = r->from;
	int k, kept;

	for (k = 0; k < MAP_QUERY_MAX && at < r->to; k++) {
		long e = sl_map_query(maps, q, at, 0x10 /* covering or next */, name, size - sizeof *q);

		if (is_error(e))
			return k || e == LATER || e == -ENAMETOOLONG_ ? (long)SL_KEPT_UNKNOWN : e;
		at = q->end;
		if (q->start >= r->to || !q->inode)
			continue;
		if (!q->name_size)
			name[0] = 0;
		kept = decide_part(r, q->dev_major, q->dev_minor, q->inode, name);
		if (kept != LATER)
			return kept;
	}
	return at < r->to ? (long)SL_KEPT_UNKNOWN : LATER;
}

static NOINLINE long decide_by_query(struct range *r, long maps)
{
	struct map_query *q = ROOM(QUERY_LEAST_);
	long kept = by_query(r, maps, q, sl_room_size(q, QUERY_LEAST_));

	sl_leave(q);
	return kept;
}

/* One line of /proc/PID/maps: "start-end perms offset major:minor inode   name". */
struct map_line {
	uint64_t number[8];
	char name[NAME_MAX_];
	uint32_t field, length;
};
enum { MAP_START, MAP_END, MAP_PERMS, MAP_OFFSET, MAP_MAJOR, MAP_MINOR, MAP_INODE, MAP_NAME };

/* Takes one byte of a line. */
static void take_byte(struct map_line *l, char c)
{
	static const char ends[] = "-  " " :  ";
	uint32_t digit = c <= '9' ? (uint32_t)(c - '0') : (uint32_t)(c - 'a' + 10);

	if (l->field == MAP_NAME) {
		if ((c != ' ' || l->length) && l->length < sizeof l->name - 1)
			l->name[l->length++] = c;
	} else if (c == ends[l->field]) {
		l->field++;
	} else {
		l->number[l->field] = l->number[l->field] * (l->field == MAP_INODE ? 10 : 16) + digit;
	}
}

static int decide_line(struct range *r, struct map_line *l)
{
	l->name[l->length] = 0;
	if (l->number[MAP_END] <= r->from || l->number[MAP_START] >= r->to || !l->number[MAP_INODE])
		return LATER;
	return decide_part(r, (uint32_t)l->number[MAP_MAJOR], (uint32_t)l->number[MAP_MINOR],
			   l->number[MAP_INODE], l->name);
}

struct map_text {
	struct map_line l;
	char buf[1024];
};
SL_STATIC_ASSERT(sizeof(struct map_text) <= SL_ROOM_BYTES, "a piece has room for it");

static void begin_line(struct map_line *l)
{
	for (l->field = MAP_NAME + 1; l->field;)
		l->number[--l->field] = 0;
	l->length = 0;
}

static long by_text(struct range *r, long maps, struct map_text *t)
{
	long n, i;

	begin_line(&t->l);
	while ((n = raw3(NR_read, maps, t->buf, sizeof t->buf)) > 0) {
		for (i = 0; i < n; i++) {
			int kept;

			if (t->buf[i] != '\n') {
				take_byte(&t->l, t->buf[i]);
				continue;
			}
			kept = decide_line(r, &t->l);
			if (kept != LATER || t->l.number[MAP_START] >= r->to)
				return kept;
			begin_line(&t->l);
		}
	}
	return n ? (long)SL_KEPT_UNKNOWN : LATER;
}

/* By the text, before Linux 6.11. */
static NOINLINE long decide_by_text(struct range *r, long maps)
{
	struct map_text *t = ROOM(sizeof *t);
	long kept = by_text(r, maps, t);

	sl_leave(t);
	return kept;
}

/* Debts of one msync: every file system that the range touches. Returns LATER or why not. */
static int decide_range(struct verdict *v, long maps, uint64_t from, uint64_t to)
{
	struct range r = { v, from, to, 0 };
	long kept = decide_by_query(&r, maps);

	if (is_error(kept) && kept != LATER)
		kept = decide_by_text(&r, maps);
	if (kept == LATER && !r.seen) /* memory only: the kernel has nothing to write either */
		kept = SL_KEPT_UNKNOWN;
	return (int)kept;
}

/* Decides for one msync whose arguments are good. */
static NOINLINE void decide_memory(struct verdict *v, const char *addr, size_t len)
{
	long maps = sl_maybe_later() ? sl_open_proc("self/maps", 0) : -EBADF_;

	*v = (struct verdict){ .kept = SL_KEPT_UNKNOWN };
	if (!is_error(maps)) {
		v->kept = decide_range(v, maps, (uintptr_t)addr, (uintptr_t)addr + len);
		raw1(NR_close, maps);
	} else if (!sl_maybe_later()) {
		v->kept = SL_KEPT_NOW;
	}
}

/* Tells which file the memory at ADDR is. */
static NOINLINE void note_memory(struct note *n, const char *addr)
{
	struct map_query *q = ROOM(sizeof *q);
	long r = sl_map_at((uintptr_t)addr, n->text, sizeof n->text, q);

	if (!is_error(r) && q->inode) {
		n->e.text = (uint16_t)r;
		n->e.has |= SL_HAS_TEXT | SL_HAS_STAT;
		n->stat = (struct sl_stat){ .inode = q->inode,
					    .dev = (uint64_t)q->dev_major << 32 | q->dev_minor };
	}
	sl_leave(q);
}

static NOINLINE long make_real(int why, char *addr, size_t len, int flags, int noted)
{
	const long a[6] = { (long)addr, (long)len, flags };

	return (noted ? sl_real : sl_real_in_place)(why, 0, NR_msync, a);
}

long sl_sync_memory(char *addr, size_t len, int flags, uint64_t caller)
{
	struct verdict v;
	struct note *n;
	int in_part;
	long r;

	if (!(flags & MS_SYNC_) || flags & MS_ASYNC_ || !sl_active())
		return raw3(NR_msync, addr, len, flags);
	r = raw3(NR_msync, addr, len, (flags & ~MS_SYNC_) | MS_ASYNC_);
	if (sl.alone)
		return r;
	sl_count_request(0);
	n = NOTE(SL_KIND_MSYNC, -1, caller);
	if (n) {
		n->e.flags = (uint32_t)flags;
		note_memory(n, addr);
	}
	/* Behind a gap (ENOMEM), and at a locked page (EBUSY), the kernel has synced the rest. */
	in_part = r == -ENOMEM_ || r == -EBUSY_;
	if (is_error(r) && !in_part && sl_maybe_later()) {
		sl_count_failed(0);
		sl_note_end(n, NULL, SL_DONE_NOTHING, r);
		return r;
	}
	if (in_part)
		v = (struct verdict){ .kept = SL_KEPT_UNKNOWN };
	else
		decide_memory(&v, addr, len);
	/* What the range owes was noted by decide_range. */
	sl_note_real(n);
	if (v.kept == LATER)
		r = -v.error;
	else
		r = make_real(v.kept, addr, len, flags, n != NULL);
	if (v.kept == LATER && v.error)
		sl_count_failed(0);
	sl_note_end(n, &v, sl_done_as(&v), r);
	return r;
}

EXPORT int msync(void *addr, size_t len, int flags)
{
	testcancel();
	return (int)sl_set(sl_sync_memory(addr, len, flags, CALLER));
}
