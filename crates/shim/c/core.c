/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Counting, and deciding for one request: now or later?
 *
 * Promise: a request is answered later only while, in every session that this process is in, the
 * supervisor's lease runs, the dial and the rules allow it and the file system is in the ledger.
 *
 * The order that makes this safe against a settle that runs at the same time: a request is first
 * counted by an atomic add (a full barrier behind whatever the program wrote), and only then are
 * `relax`, the lease and the state of the file system read. Whoever ends a relaxation first stores
 * relax = 0 and then settles. So a request that still saw relax = 1 is covered by that settle.
 */
#include "shim.h"

void sl_ring(struct sl_slots *s)
{
	ADD(s->doorbell, 1);
	raw3(NR_futex, &s->doorbell, 1 /* FUTEX_WAKE */, 1);
}

long sl_futex_wait(uint32_t *word, uint32_t value, long ms)
{
	long t[2] = { ms / 1000, ms % 1000 * 1000000 };

	return raw4(NR_futex, word, 0 /* FUTEX_WAIT */, value, t);
}

/* The inode number in a link like "pid:[4026531836]", or 0. */
uint64_t sl_namespace_number(const char *link)
{
	char buf[64];
	long n = raw4(NR_readlinkat, AT_FDCWD_, link, buf, sizeof buf), i;
	uint64_t v = 0;

	for (i = 0; i < n && buf[i] != '['; i++)
		;
	for (i++; i < n && buf[i] >= '0' && buf[i] <= '9'; i++)
		v = v * 10 + (uint64_t)(buf[i] - '0');
	return v;
}

/* The number of our pid namespace, or 0: behind a chroot there may be no /proc to ask. */
uint64_t sl_pid_namespace(void)
{
	return sl.pid_ns ? sl.pid_ns : sl_namespace_number("/proc/self/ns/pid");
}

/* Claims a slot, the one of an earlier image of this process if there is one. */
static struct sl_slot *claim(struct sl_slots *s)
{
	uint32_t pid = (uint32_t)raw0(NR_getpid), k;
	uint64_t ns = sl_pid_namespace();

	for (k = 0; k < SL_SLOT_MAX - 1; k++) {
		struct sl_slot *t = &s->slot[1 + (pid + k) % (SL_SLOT_MAX - 1)];

		if (LOAD(t->pid) == pid && LOAD_RELAXED(t->pid_ns) == ns)
			return t;
		if (LOAD(t->pid) == 0 && CAS(t->pid, 0, pid)) {
			t->pid_ns = ns;
			t->uid = (uint32_t)raw0(NR_geteuid);
			return t;
		}
	}
	sl_ring(s); /* the supervisor frees the slots of the dead */
	return &s->slot[0];
}

struct sl_slot *sl_claim(unsigned i)
{
	struct sl_slot *s = claim(sl.level[i].slots);

	__atomic_store_n(&sl_mine->slot[i], s, __ATOMIC_RELAXED);
	return s;
}

void sl_count_request(int hint)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		struct sl_shard *h = shard_of(i, NULL);

		if (hint)
			ADD(h->hints, 1);
		else
			ADD(h->requests, 1);
	}
}

void sl_count_failed(int hint)
{
	unsigned i;

	for (i = 0; !hint && i < sl.levels; i++)
		ADD(shard_of(i, NULL)->failed, 1);
}

/* Counts a request that is made for real. */
void sl_count_kept(int why, int hint)
{
	struct sl_slot *s;
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		struct sl_shard *h = shard_of(i, &s);

		if (hint) {
			ADD(h->hints_real, 1);
			continue;
		}
		ADD(h->real, 1);
		__atomic_fetch_add(&s->kept[why], 1, __ATOMIC_RELAXED);
	}
}

void sl_slot_flag(uint32_t flag)
{
	struct sl_slot *s;
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		shard_of(i, &s);
		__atomic_fetch_or(&s->flags, flag, __ATOMIC_RELAXED);
	}
}

/* Another file system, or a device, came into sight: every request looks where it lies. */
void sl_look_from_now_on(void)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		STORE(sl.level[i].slots->look, 1);
		sl_ring(sl.level[i].slots);
	}
}

static uint64_t ticks(const struct sl_page *p)
{
	int64_t t[2] = { 0, 0 };

	if (LIKELY(p->clock == SL_CLOCK_TSC))
		return counter_ticks();
#if defined(__i386__)
	raw2(NR_clock_gettime, 0, t); /* clock_gettime64 */
#else
	raw2(NR_clock_gettime, 0, t);
#endif
	return (uint64_t)t[0] * 1000000000u + (uint64_t)t[1];
}

/* Now, in ticks of the session's clock. */
uint64_t sl_ticks(void) { return ticks(sl.level[0].page); }

/* What lets a real call of ours pass the session's seccomp filter, as an argument that the call
 * does not have. Of the sessions around each other one has a filter at most. */
long sl_cookie(void)
{
	uint32_t net = 0;
	unsigned i;

	for (i = 0; i < sl.levels && !net; i++)
		net = sl.level[i].page->net;
#if __SIZEOF_LONG__ == 8
	return net ? (long)(SL_COOKIE | net) : 0;
#else
	return (long)net;
#endif
}

/* The sixth argument of a call that is made for real. */
static long sixth(long nr, const long a[6])
{
#ifdef __i386__
	if (nr == NR_sync_file_range) /* has six of its own */
		return a[5];
#endif
	(void)nr, (void)a;
	return sl_cookie();
}

/* Makes the call for real, counts why, and how long it took. It is counted first: who compares that
 * with what the kernel sees, or is killed in the call, finds none too many there. */
long sl_real(int why, int hint, long nr, const long a[6])
{
	uint64_t before, took;
	unsigned i;
	long r;

	if (!sl.levels)
		return raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
	sl_count_kept(why, hint);
	before = ticks(sl.level[0].page);
	r = raw(nr, a[0], a[1], a[2], a[3], a[4], sixth(nr, a));
	took = ticks(sl.level[0].page) - before;
	for (i = 0; !hint && i < sl.levels; i++) {
		ADD(shard_of(i, NULL)->ticks, took);
		ADD(shard_of(i, NULL)->timed, 1);
	}
	return r;
}

/* As above for a request that is not recorded: it is of no interest how long it takes, so a running
 * program that was attached makes it by its own instruction. */
long sl_real_in_place(int why, int hint, long nr, const long a[6])
{
#ifdef SL_GATE
	/* Its own instruction would be seen by the session's filter. */
	if (!sl_cookie()) {
		sl_count_kept(why, hint);
		return SL_AT_SITE;
	}
#endif
	return sl_real(why, hint, nr, a);
}

/* Whether the supervisor's promise to settle still stands. */
int sl_lease_runs(const struct sl_page *p)
{
	return LOAD(p->lease_until) - ticks(p) <= p->lease_span;
}

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

/* The magic link to FD, which readlink and open take. */
void sl_fd_link(int fd, char link[32])
{
	static const char head[] = "/proc/self/fd/";
	char digits[12];
	int n = 0, at;

	for (at = 0; head[at]; at++)
		link[at] = head[at];
	do
		digits[n++] = (char)('0' + fd % 10);
	while (fd /= 10);
	while (n)
		link[at++] = digits[--n];
	link[at] = 0;
}

/* Asks the supervisor about a mount that the page does not know. */
static int ask_mount(unsigned level, uint64_t id)
{
	struct sl_slot *s;

	shard_of(level, &s);
	if (LOAD(s->ask_mount) != id) {
		STORE(s->ask_mount, id);
		sl_ring(sl.level[level].slots);
	}
	return SL_KEPT_UNKNOWN;
}

int sl_find_mount(const struct sl_page *p, uint64_t id, uint8_t *fs)
{
	uint32_t at = (uint32_t)(id * 0x9e3779b97f4a7c15ull >> 32), k;

	for (k = 0; k < SL_PROBE_MAX; k++) {
		const struct sl_mount *m = &p->mounts[(at + k) % SL_MOUNT_MAX];
		uint64_t got = LOAD(m->id);

		if (got == id && m->fs < SL_FS_MAX) {
			*fs = (uint8_t)m->fs;
			return 1;
		}
		if (!got)
			break;
	}
	return 0;
}

static int fs_by_dev(const struct sl_page *p, uint64_t dev, uint8_t *fs)
{
	uint32_t i;

	for (i = 0; i < SL_FS_MAX; i++) {
		if (LOAD(p->fs[i].state) != SL_FS_FREE && LOAD(p->fs[i].dev) == dev) {
			*fs = (uint8_t)i;
			return LATER;
		}
	}
	return SL_KEPT_UNKNOWN;
}

/* The file type (S_IFMT) of PATH below DIR, with AT_ flags AT, or -errno. */
long sl_type(int dir, const char *path, int at)
{
	union {
		char bytes[256];
		uint32_t words[64];
	} x;
	long r = raw5(NR_statx, dir, path, at | 0x4000 /* DONT_SYNC */, 1 /* STATX_TYPE */, &x);

	return is_error(r) ? r : (*(uint16_t *)(void *)&x.bytes[28] & S_IFMT_);
}

/* statx of FD itself. Since Linux 6.11 without a path: a tenth less than with an empty one. */
long sl_statx(int fd, uint32_t mask, void *x)
{
	static int empty;
	int at = 0x1000 | 0x4000; /* EMPTY_PATH, DONT_SYNC */
	long r = raw5(NR_statx, fd, LOAD_RELAXED(empty) ? "" : NULL, at, mask, x);

	if (r != -EFAULT_)
		return r;
	__atomic_store_n(&empty, 1, __ATOMIC_RELAXED);
	return raw5(NR_statx, fd, "", at, mask, x);
}

/* Looks where FD lies: the mount id and the type, by statx. */
static int look(unsigned level, int fd, uint8_t *fs)
{
	const struct sl_page *p = sl.level[level].page;
	union {
		char bytes[256];
		uint32_t words[64];
		uint64_t longs[32];
	} x;
	unsigned mode;

	if (is_error(sl_statx(fd, p->mount_mask | 1 /* STATX_TYPE */, &x)) ||
	    !(x.words[0] & p->mount_mask))
		return SL_KEPT_UNKNOWN;
	mode = *(uint16_t *)(void *)&x.bytes[28] & S_IFMT_;
	if (mode != S_IFREG_ && mode != S_IFDIR_ && mode != S_IFLNK_)
		return SL_KEPT_BLOCK;
	return sl_find_mount(p, x.longs[0x90 / 8], fs) ? LATER
						       : ask_mount(level, x.longs[0x90 / 8]);
}

#ifdef SL_GATE
/* Which descriptors were found to be no block device since an open began: in a running program only
 * its own instruction opens, so that what it opened is looked at when it is synced. No thread
 * pointer is used here: a program that is followed may open files before it has one. */
#define METS 64u
static unsigned long met[METS];
static uint32_t opens = 1;

static unsigned long as_met(int fd)
{
#if __SIZEOF_LONG__ == 8
	return (unsigned long)LOAD(opens) << 32 | (uint32_t)fd;
#else
	return LOAD(opens) << 10 | ((uint32_t)fd / METS & 1023);
#endif
}

void sl_opening(void) { ADD(opens, 1); }

int sl_has_met(int fd) { return LOAD_RELAXED(met[(unsigned)fd % METS]) == as_met(fd); }

/* Whether FD is a block device, which every request of the session is then to look out for. */
static int meets_device(int fd)
{
	unsigned long as = as_met(fd);
	long type = sl_type(fd, "", 0x1000 /* AT_EMPTY_PATH */);

	if (type == S_IFBLK_)
		sl_look_from_now_on();
	else if (!is_error(type))
		__atomic_store_n(&met[(unsigned)fd % METS], as, __ATOMIC_RELAXED);
	return type == S_IFBLK_;
}
#else
static int meets_device(int fd) { return (void)fd, 0; }
#endif

static int fs_of(unsigned i, const struct subject *s, uint8_t *fs)
{
	const struct sl_page *p = sl.level[i].page;
	uint32_t single = LOAD(p->single);

	if (s->has_dev)
		return fs_by_dev(p, s->dev, fs);
	if (s->fd < 0) {
		*fs = SL_ALL_FS;
		return LATER;
	}
	if (LIKELY(single && single <= SL_FS_MAX && !LOAD(sl.level[i].slots->look) &&
		   sl.other_ns == 1 && (sl_has_met(s->fd) || !meets_device(s->fd)))) {
		*fs = (uint8_t)(single - 1);
		return LATER;
	}
	return look(i, s->fd, fs);
}

static int want_sync(struct sl_slots *s)
{
	if (!LOAD(s->want_sync)) {
		STORE(s->want_sync, 1);
		sl_ring(s);
	}
	return SL_KEPT_SYNC_ALL;
}

/* Whether file system FS may owe; asks for it where it is not in the ledger yet. */
static int may_owe(unsigned i, uint8_t fs)
{
	const struct sl_page *p = sl.level[i].page;
	struct sl_slots *s = sl.level[i].slots;
	uint64_t bit;

	if (fs == SL_ALL_FS)
		return LOAD(p->sync_ok) ? LATER : want_sync(s);
	switch (LOAD(p->fs[fs].state)) {
	case SL_FS_OWES:
	case SL_FS_NOTHING:
		return LATER;
	case SL_FS_KNOWN:
		bit = 1ull << fs;
		if (!(__atomic_fetch_or(&s->want, bit, __ATOMIC_SEQ_CST) & bit))
			sl_ring(s);
		return SL_KEPT_LEDGER;
	default:
		return SL_KEPT_FS;
	}
}

/* Decides at one level. Returns LATER or why not. */
static int decide_level(unsigned i, struct verdict *v, const struct subject *s)
{
	const struct sl_page *p = sl.level[i].page;
	int kept;

	if (!LOAD(p->relax))
		return SL_KEPT_NOW;
	if (UNLIKELY(!sl_lease_runs(p)))
		return SL_KEPT_LEASE;
	kept = sl_class_of(&sl.level[i], s, &v->class_[i]);
	if (kept != LATER)
		return kept;
	if (UNLIKELY(LOAD(p->error))) {
		v->error = (int)LOAD(p->error);
		return LATER;
	}
	kept = fs_of(i, s, &v->fs[i]);
	return kept == LATER ? may_owe(i, v->fs[i]) : kept;
}

/* Decides for one request that was counted already; see the head of this file for the order. */
void sl_decide(struct verdict *v, const struct subject *s)
{
	unsigned i;

	v->error = 0;
	v->kept = LATER;
	for (i = 0; i < sl.levels && v->kept == LATER; i++)
		v->kept = decide_level(i, v, s);
}

/* Notes the debt of a request that is about to be answered. */
int sl_owe(const struct verdict *v)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		const struct sl_page *p = sl.level[i].page;
		struct sl_slots *s = sl.level[i].slots;
		uint64_t *cell = &s->debt[v->fs[i]][v->class_[i]];

		if (v->fs[i] < SL_FS_MAX) {
			if (!LOAD(p->single) || LOAD(s->look))
				__atomic_fetch_add(&s->fs_requests[v->fs[i]], 1, __ATOMIC_RELAXED);
			if (p->fs[v->fs[i]].state == SL_FS_NOTHING)
				continue;
		}
		if (UNLIKELY(!LOAD(*cell)) && CAS(*cell, 0, ticks(p) | 1))
			sl_ring(s);
	}
	return 0;
}
