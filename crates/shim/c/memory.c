/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * msync: which files lie in a range of memory, and on which file systems.
 *
 * A bad argument fails as in the kernel: we ask it by MS_ASYNC, which checks the same and writes
 * nothing. What the range holds is asked by PROCMAP_QUERY (Linux 6.11), else read from
 * /proc/self/maps; what cannot be told is made for real.
 */
#include "shim.h"

#define MS_ASYNC_ 1
#define MS_SYNC_  4
/* Bytes of a path, with its end: this may run on the 8 KiB of a signal's stack. A mapping with a
 * longer one is synced for real. */
#define NAME_MAX_ 1024

/* struct procmap_query of linux/fs.h (Linux 6.11). */
struct map_query {
	uint64_t size, flags, addr, start, end, vma_flags, page_size, offset, inode;
	uint32_t dev_major, dev_minor, name_size, build_id_size;
	uint64_t name, build_id;
};
#define MAP_QUERY_IOCTL 0xc0686611ul
#define MAP_QUERY_MAX   64

/* The file that is mapped at ADDRESS, and where in it that lies. Returns the length of its name, or
 * -errno. */
static long file_at(uint64_t address, char *name, uint32_t size, struct map_query *q)
{
	long maps = sl_open_proc("self/maps", 0), r;

	if (is_error(maps))
		return maps;
	*q = (struct map_query){ .size = sizeof *q,
				 .addr = address,
				 .name_size = size,
				 .name = (uintptr_t)name };
	r = raw3(NR_ioctl, maps, MAP_QUERY_IOCTL, q);
	raw1(NR_close, maps);
	if (is_error(r))
		return r;
	return q->name_size ? (long)q->name_size - 1 : 0;
}

long sl_file_at(uint64_t address, char *name, uint32_t size, uint64_t *offset)
{
	struct map_query q;
	long r = file_at(address, name, size, &q);

	if (!is_error(r))
		*offset = address - q.start + q.offset;
	return r;
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
	union {
		char bytes[256];
		uint16_t halves[128];
		uint32_t words[64];
		uint64_t longs[32];
	} x;
	int at = 0x800 | 0x100 | 0x4000; /* NO_AUTOMOUNT, SYMLINK_NOFOLLOW, DONT_SYNC */
	uint64_t there;

	if (is_error(raw5(NR_statx, AT_FDCWD_, name, at, 0x101 /* INO, TYPE */, &x)))
		return 0;
	there = (uint64_t)x.words[0x88 / 4] << 32 | x.words[0x8c / 4];
	return (x.halves[0x1c / 2] & S_IFMT_) == S_IFREG_ && x.longs[0x20 / 8] == inode &&
	       (there == dev || !(there >> 32 | dev >> 32));
}

/* Decides for the part of the range that lies on one file. Returns LATER or why not. */
static int decide_part(struct range *r, uint32_t major, uint32_t minor, uint64_t inode,
		       const char *name)
{
	struct subject s = { -1, name, (uint64_t)major << 32 | minor, 1 };

	if (!is_file(name, s.dev, inode))
		return r->v->kept = SL_KEPT_UNKNOWN;
	sl_decide(r->v, &s);
	if (r->v->kept != LATER)
		return r->v->kept;
	r->seen = 1;
	if (!r->v->error)
		sl_owe(r->v);
	return LATER;
}

/* By one call a mapping, whose NAME has SIZE bytes. Returns LATER, why not, or -errno where the
 * kernel has no such call, or a name has no room. */
static long decide_by_query(struct range *r, long maps, char *name, uint32_t size)
{
	uint64_t at = r->from;
	int k, kept;

	for (k = 0; k < MAP_QUERY_MAX && at < r->to; k++) {
		struct map_query q = { .size = sizeof q,
				       .flags = 0x10 /* covering or next */,
				       .addr = at,
				       .name_size = size,
				       .name = (uintptr_t)name };
		long e = raw3(NR_ioctl, maps, MAP_QUERY_IOCTL, &q);

		if (e == -ENAMETOOLONG_)
			return e;
		if (is_error(e))
			return k || e == LATER ? (long)SL_KEPT_UNKNOWN : e;
		at = q.end;
		if (q.start >= r->to || !q.inode)
			continue;
		if (!q.name_size)
			name[0] = 0;
		kept = decide_part(r, q.dev_major, q.dev_minor, q.inode, name);
		if (kept != LATER)
			return kept;
	}
	return at < r->to ? (long)SL_KEPT_UNKNOWN : LATER;
}

/* The stack may be a signal's, of which the kernel's own frame takes 3 KiB with AVX-512. */
static NOINLINE long decide_by_short_names(struct range *r, long maps)
{
	char name[512];

	return decide_by_query(r, maps, name, sizeof name);
}

static NOINLINE long decide_by_long_names(struct range *r, long maps)
{
	char name[NAME_MAX_];
	long kept = decide_by_query(r, maps, name, sizeof name);

	return kept == -ENAMETOOLONG_ ? (long)SL_KEPT_UNKNOWN : kept;
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

/* By the text, before Linux 6.11. */
static NOINLINE long decide_by_text(struct range *r, long maps)
{
	struct map_line l = { .field = 0 };
	char buf[1024];
	long n, i;

	while ((n = raw3(NR_read, maps, buf, sizeof buf)) > 0) {
		for (i = 0; i < n; i++) {
			int kept;

			if (buf[i] != '\n') {
				take_byte(&l, buf[i]);
				continue;
			}
			kept = decide_line(r, &l);
			if (kept != LATER || l.number[MAP_START] >= r->to)
				return kept;
			for (l.field = MAP_NAME + 1; l.field;)
				l.number[--l.field] = 0;
			l.length = 0;
		}
	}
	return n ? (long)SL_KEPT_UNKNOWN : LATER;
}

/* Debts of one msync: every file system that the range touches. Returns LATER or why not. */
static int decide_range(struct verdict *v, long maps, uint64_t from, uint64_t to)
{
	struct range r = { v, from, to, 0 };
	long kept = decide_by_short_names(&r, maps);

	if (kept == -ENAMETOOLONG_)
		kept = decide_by_long_names(&r, maps);
	if (is_error(kept) && kept != LATER)
		kept = decide_by_text(&r, maps);
	if (kept == LATER && !r.seen) /* memory only: the kernel has nothing to write either */
		kept = SL_KEPT_UNKNOWN;
	return (int)kept;
}

/* Decides for one msync whose arguments are good. */
static struct verdict decide_memory(const char *addr, size_t len)
{
	struct verdict v = { .kept = SL_KEPT_UNKNOWN };
	long maps = sl_maybe_later() ? sl_open_proc("self/maps", 0) : -EBADF_;

	if (!is_error(maps)) {
		v.kept = decide_range(&v, maps, (uintptr_t)addr, (uintptr_t)addr + len);
		raw1(NR_close, maps);
	} else if (!sl_maybe_later()) {
		v.kept = SL_KEPT_NOW;
	}
	return v;
}

/* Tells which file the memory at ADDR is. */
static void note_memory(struct note *n, const char *addr)
{
	struct map_query q;
	long r = file_at((uintptr_t)addr, n->text, sizeof n->text, &q);

	if (is_error(r) || !q.inode)
		return;
	n->e.text = (uint16_t)r;
	n->e.has |= SL_HAS_TEXT | SL_HAS_STAT;
	n->stat = (struct sl_stat){ .inode = q.inode,
				    .dev = (uint64_t)q.dev_major << 32 | q.dev_minor };
}

long sl_sync_memory(char *addr, size_t len, int flags, uint64_t caller)
{
	const long a[6] = { (long)addr, (long)len, flags };
	struct verdict v;
	struct note n;
	int in_part;
	long r;

	if (!(flags & MS_SYNC_) || flags & MS_ASYNC_ || !sl_active())
		return raw3(NR_msync, addr, len, flags);
	r = raw3(NR_msync, addr, len, (flags & ~MS_SYNC_) | MS_ASYNC_);
	if (sl.alone)
		return r;
	sl_count_request(0);
	if (sl_note(&n, SL_KIND_MSYNC, -1, caller)) {
		n.e.flags = (uint32_t)flags;
		note_memory(&n, addr);
	}
	/* Behind a gap (ENOMEM), and at a locked page (EBUSY), the kernel has synced the rest. */
	in_part = r == -ENOMEM_ || r == -EBUSY_;
	if (is_error(r) && !in_part && sl_maybe_later()) {
		sl_count_failed(0);
		sl_note_end(&n, NULL, SL_DONE_NOTHING, r);
		return r;
	}
	if (in_part)
		v = (struct verdict){ .kept = SL_KEPT_UNKNOWN };
	else
		v = decide_memory(addr, len);
	/* What the range owes was noted by decide_range. */
	sl_note_real(&n);
	if (v.kept == LATER)
		r = -v.error;
	else
		r = (n.on ? sl_real : sl_real_in_place)(v.kept, 0, NR_msync, a);
	if (v.kept == LATER && v.error)
		sl_count_failed(0);
	sl_note_end(&n, &v, sl_done_as(&v), r);
	return r;
}

EXPORT int msync(void *addr, size_t len, int flags)
{
	testcancel();
	return (int)sl_set(sl_sync_memory(addr, len, flags, CALLER));
}
