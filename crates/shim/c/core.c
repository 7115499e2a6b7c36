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

/* The line of counters of this thread, which is not where it is looked for first (AT). A thread
 * that has ended may have left its own to one at the same address. */
NOINLINE uint32_t sl_line(uint32_t at)
{
	uint64_t self = thread_number() & ~(uint64_t)(SL_SHARDS - 1);
	uint32_t k, line, to = at;

	for (k = 0; k < 4; k++) {
		uint64_t there = LOAD_RELAXED(sl_mine->line[at ^ k]);

		if (there && (there ^ self) < SL_SHARDS)
			return (uint32_t)there % SL_SHARDS;
		if (!there) {
			to = at ^ k;
			break;
		}
	}
	line = __atomic_fetch_add(&sl_mine->lines, 1, __ATOMIC_RELAXED) % SL_SHARDS;
	__atomic_store_n(&sl_mine->line[to], self | line, __ATOMIC_RELAXED);
	return line;
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

void sl_slot_unflag(uint32_t flag)
{
	struct sl_slot *s;
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		shard_of(i, &s);
		__atomic_fetch_and(&s->flags, ~flag, __ATOMIC_RELAXED);
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

static unsigned took_place(uint64_t t)
{
	unsigned doubling = 63 - (unsigned)__builtin_clzll(t | 1);
	unsigned place;

	if (doubling < SL_TOOK_FIRST)
		return 0;
	place = (doubling - SL_TOOK_FIRST) * 8 + (unsigned)(t >> (doubling - 3) & 7);
	return place < SL_TOOK_PLACES ? place : SL_TOOK_PLACES - 1;
}

/* Notes how long a sync of FD took, where its file system may owe: so long one takes there that is
 * put off. */
static void note_took(int fd, uint64_t took)
{
	struct place w = { .type = 0 };
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		const struct sl_page *p = sl.level[i].page;
		uint32_t fs;

		/* Nothing owes: that costs no question. */
		if (!LOAD_RELAXED(p->fs[0].dev) || (!w.type && is_error(sl_place(fd, &w))))
			continue;
		fs = sl_named(p, w.dev, w.mount);
		if (fs < SL_FS_MAX)
			__atomic_fetch_add(&sl.level[i].slots->took[fs][took_place(took)], 1,
					   __ATOMIC_RELAXED);
	}
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
	/* A filter on all threads may stand by now, which forbids to ask where the file lies. */
	if ((nr == NR_fsync || nr == NR_fdatasync) && !is_error(r) && !sl_is_outside())
		note_took((int)a[0], took);
	return r;
}

/* The same for a call of one argument, or of none. */
long sl_real_one(int why, long nr, long arg)
{
	const long a[6] = { arg };

	return sl_real(why, 0, nr, a);
}

/* Whether the program's own instruction makes a call for real, which is counted here. */
static int is_left_to_site(int why, int hint)
{
#ifdef SL_GATE
	/* The session's filter would see that. */
	if (!sl_cookie()) {
		sl_count_kept(why, hint);
		return 1;
	}
#else
	(void)why, (void)hint;
#endif
	return 0;
}

/* As sl_real for a request that is not recorded: it is of no interest how long it takes, so a
 * running program that was attached makes it by its own instruction. */
long sl_real_in_place(int why, int hint, long nr, const long a[6])
{
	return is_left_to_site(why, hint) ? SL_AT_SITE : sl_real(why, hint, nr, a);
}

long sl_real_one_in_place(int why, long nr, long arg)
{
	return is_left_to_site(why, 0) ? SL_AT_SITE : sl_real_one(why, nr, arg);
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

/* FD in decimal. */
void sl_digits(int fd, char text[12])
{
	char digits[12];
	int n = 0, at = 0;

	do
		digits[n++] = (char)('0' + fd % 10);
	while (fd /= 10);
	while (n)
		text[at++] = digits[--n];
	text[at] = 0;
}

/* The magic link to FD, for a name to be shown: behind a chroot it may be anybody's. */
void sl_fd_link(int fd, char link[32])
{
	static const char head[] = "/proc/thread-self/fd/";
	int at;

	for (at = 0; head[at]; at++)
		link[at] = head[at];
	sl_digits(fd, link + at);
}

/* Whether a filter that is no session's may forbid a call that the program has not made, or kill at
 * it. What is attached was looked at then. */
int sl_is_filtered(void)
{
#ifdef SL_GATE
	return sl_is_outside();
#else
	unsigned i, net = 0;

	for (i = 0; i < sl.levels; i++)
		net |= LOAD_RELAXED(sl.level[i].page->net);
	/* One that could not join may ask: nothing of its own forbids that. */
	return sl_is_trying() || LOAD(sl.outside) & SL_RESTRICTS || sl.filters > !!net;
#endif
}

/* Asks the supervisor about a number that the page does not know; FD has it, or is -1. */
static int ask(unsigned level, uint64_t dev, int fd)
{
	struct sl_slot *s;

	shard_of(level, &s);
	if (LOAD(s->ask_dev) != dev) {
		STORE(s->ask_fd, fd);
		STORE(s->ask_dev, dev);
		sl_ring(sl.level[level].slots);
	}
	return SL_KEPT_LEDGER;
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

/* Another file may be open as FD now, or one that cannot be synced (O_PATH); -1: as any. */
void sl_forget(int fd)
{
	unsigned i = fd < 0 ? 0 : (unsigned)fd % SOUND_MAX;
	unsigned end = fd < 0 ? SOUND_MAX : i + 1;

	for (; sl_mine && i < end; i++)
		__atomic_store_n(&sl_mine->sound[i], 0, __ATOMIC_RELAXED);
}

/* The write-back errors of FD's file from before its file system was held in any session; those of
 * later are heard by whoever holds it. The kernel tells them once an open file, so one question is
 * asked for all sessions. Returns an errno or 0. */
static int old_error(int fd, const struct place *w, const struct verdict *v)
{
	uint32_t held = 0;
	unsigned i;
	long r;

	for (i = 0; i < sl.levels; i++)
		if (v->fs[i] < SL_FS_MAX)
			held = held * 31 + LOAD_RELAXED(sl.level[i].page->fs[v->fs[i]].held);
	if (!held || LIKELY(LOAD_RELAXED(sl_mine->sound[(unsigned)fd % SOUND_MAX]) ==
			    sl_soundness(fd, w, held)))
		return 0;
	r = sl_ask_errors(fd);
	sl_remember(fd, sl_soundness(fd, w, held));
	return is_error(r) ? (int)-r : 0;
}

static int is_memory(int fd)
{
	return fd >= 0 && sl_magic_of(fd) == 0x01021994 /* TMPFS_MAGIC */;
}

/* Which superblock has the number DEV on a mount, and whether it may owe. */
static int fs_by_number(unsigned i, uint64_t dev, uint64_t mount, int fd, uint8_t *fs)
{
	const struct sl_page *p = sl.level[i].page;
	uint32_t named = sl_named(p, dev, mount);

	if (LIKELY(named < SL_FS_MAX)) {
		*fs = (uint8_t)named;
		return LOAD(p->fs[named].state) == SL_FS_OWES ? LATER : (int)SL_KEPT_LEDGER;
	}
	*fs = SL_NO_FS;
	switch (named) {
	case SL_NAME_MEMORY:
		return is_memory(fd) ? LATER : (int)SL_KEPT_FS;
	case SL_NAME_REAL:
		return SL_KEPT_FS;
	case SL_NAME_UNKNOWN:
		return SL_KEPT_UNKNOWN;
	case SL_NAME_AWAY:
		return SL_KEPT_AWAY;
	default:
		return dev ? ask(i, dev, fd) : (int)SL_KEPT_UNKNOWN;
	}
}

static int want_sync(struct sl_slots *s)
{
	if (LOAD(s->want_sync) & SL_SYNC_WANTS)
		return SL_KEPT_SYNC_ALL;
	__atomic_fetch_or(&s->want_sync, SL_SYNC_WANTS, __ATOMIC_SEQ_CST);
	sl_ring(s);
	return SL_KEPT_LEDGER;
}

/* Which superblock a request is about: what its descriptor says now (W), whatever it said once. */
static int fs_of(unsigned i, int fd, struct verdict *v, struct place *w)
{
	if (fd < 0) {
		v->fs[i] = SL_ALL_FS;
		return LOAD(sl.level[i].page->sync_ok) ? LATER : want_sync(sl.level[i].slots);
	}
	if (!w->type && is_error(sl_place(fd, w)))
		return SL_KEPT_UNKNOWN;
	if (w->type != S_IFREG_ && w->type != S_IFDIR_ && w->type != S_IFLNK_)
		return SL_KEPT_BLOCK;
	return fs_by_number(i, w->dev, w->mount, fd, &v->fs[i]);
}

#define ANY_DEV UINT64_MAX

/* Decides at one level. Returns LATER or why not. */
static int decide_level(unsigned i, struct verdict *v, int fd, const char *path, uint64_t dev,
			struct place *w)
{
	const struct sl_page *p = sl.level[i].page;
	int kept;

	if (!LOAD(p->relax))
		return SL_KEPT_NOW;
	if (UNLIKELY(!sl_lease_runs(p)))
		return SL_KEPT_LEASE;
	kept = sl_class_of(&sl.level[i], fd, path, &v->class_[i]);
	if (kept != LATER)
		return kept;
	if (UNLIKELY(LOAD(p->error))) {
		v->error = (int)LOAD(p->error);
		return LATER;
	}
	return dev == ANY_DEV ? fs_of(i, fd, v, w) : fs_by_number(i, dev, 0, -1, &v->fs[i]);
}

/* Decides at each level, about FD (-1: none), what is called PATH, where that is known, and the
 * superblock DEV, where that is not FD's. What one session has lost is the answer, whatever the
 * others say; with ASKS also what the kernel says that the file has lost. */
static NOINLINE void decide(struct verdict *v, int fd, const char *path, uint64_t dev, int asks)
{
	struct place w = { .type = 0 };
	unsigned i;

	v->error = 0;
	v->kept = LATER;
	for (i = 0; i < sl.levels && v->kept == LATER && !v->error; i++)
		v->kept = decide_level(i, v, fd, path, dev, &w);
	for (; i < sl.levels; i++)
		if (!LOAD_RELAXED(sl.level[i].slots->unasked))
			STORE(sl.level[i].slots->unasked, 1);
	if (asks && v->kept == LATER && !v->error && w.type)
		v->error = old_error(fd, &w, v);
}

/* What would become of a request about FD, without asking for its errors: LATER or SL_KEPT_*. */
int sl_would_keep(int fd) { return sl_would_keep_as(fd, NULL); }

/* The same of what has the name PATH, for rules, and lies where FD does. */
int sl_would_keep_as(int fd, const char *path)
{
	struct verdict v;

	decide(&v, fd, path, ANY_DEV, 0);
	return v.kept;
}

/* Notes for good that what a verdict at level I is about has owed. */
static void has_owed(unsigned i, const struct verdict *v)
{
	__atomic_fetch_or(&sl.level[i].slots->owed[v->fs[i] % (SL_FS_MAX + 1) / 32],
			  1u << v->fs[i] % 32, __ATOMIC_SEQ_CST);
}

/* What becomes of a request for FD; where it is put off that is owed for good, whatever the number
 * is by then, and whoever writes there unseen (stdio, to what has lost its O_SYNC). */
int sl_owes_unseen(int fd)
{
	struct verdict v;
	unsigned i;

	decide(&v, fd, NULL, ANY_DEV, 0);
	for (i = 0; i < sl.levels && v.kept == LATER && !v.error; i++)
		has_owed(i, &v);
	return v.kept;
}

/* Decides for one request that was counted already, about FD, or about everything (-1); the order:
 * see the head of this file. */
void sl_decide(struct verdict *v, int fd) { decide(v, fd, NULL, ANY_DEV, 1); }

/* The same about what is called PATH, on the superblock of the number DEV. */
void sl_decide_by_number(struct verdict *v, const char *path, uint64_t dev)
{
	decide(v, -1, path, dev, 1);
}

/* Notes the debt of a request that is about to be answered. */
int sl_owe(const struct verdict *v)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		const struct sl_page *p = sl.level[i].page;
		struct sl_slots *s = sl.level[i].slots;
		uint64_t *cell = &s->debt[v->fs[i] % (SL_FS_MAX + 1)][v->class_[i]];

		if (v->fs[i] == SL_NO_FS) {
			ADD(s->in_memory, 1);
			continue;
		}
		if (v->fs[i] < SL_FS_MAX && LOAD_RELAXED(p->several))
			__atomic_fetch_add(&s->fs_requests[v->fs[i]], 1, __ATOMIC_RELAXED);
		if (LIKELY(LOAD(*cell)) && v->fs[i] != SL_ALL_FS)
			continue;
		/* First, and for good: who takes the debt may die before he has said so. */
		has_owed(i, v);
		/* At each sync(): it is looked who writes where. */
		if (v->fs[i] == SL_ALL_FS)
			__atomic_fetch_or(&s->want_sync, SL_SYNC_LATER, __ATOMIC_SEQ_CST);
		if (CAS(*cell, 0, ticks(p) | 1) || v->fs[i] == SL_ALL_FS)
			sl_ring(s);
	}
	return 0;
}

/* Notes the debt of a request about FD that was decided a while ago, by what that is now: the index
 * of a file system that was let go of meanwhile may be another's. Returns 0 where it may not be put
 * off any more. */
int sl_owe_for(int fd)
{
	struct verdict v;

	decide(&v, fd, NULL, ANY_DEV, 0);
	if (v.kept == LATER && !v.error)
		sl_owe(&v);
	return v.kept == LATER;
}
