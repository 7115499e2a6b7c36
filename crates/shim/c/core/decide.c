/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Deciding for one request: now or later? And the debt of one that is put off.
 *
 * Promise: a request is answered later only while, in every session that this process is in, the
 * supervisor's lease runs, the dial and the rules allow it and the file system is in the ledger.
 *
 * The order that makes this safe against a settle that runs at the same time: a request is first
 * counted by an atomic add (a full barrier behind whatever the program wrote), and only then are
 * `relax`, the lease and the state of the file system read. Whoever ends a relaxation first stores
 * relax = 0 and then settles. So a request that still saw relax = 1 is covered by that settle.
 */
#include "core/core.h"

/* Whether the supervisor's promise to settle still stands. */
int sl_lease_runs(const struct sl_page *p)
{
	return LOAD(p->lease_until) - sl_ticks_of(p) <= p->lease_span;
}

/* Whether it is worth to look at the arguments: not where no session would put anything off. */
int sl_maybe_later(void)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++)
		if (!LOAD(sl.level[i].page->relax))
			return 0;
	return 1;
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
		if (CAS(*cell, 0, sl_ticks_of(p) | 1) || v->fs[i] == SL_ALL_FS)
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
