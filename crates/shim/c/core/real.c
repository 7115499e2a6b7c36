/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Calls that are made for real: counted, and timed.
 *
 * Promise: the kernel gets the call with the program's own arguments, once, and the program gets
 * the kernel's answer. What a call of one or two arguments has in its sixth is the session's
 * cookie.
 */
#include "core/core.h"

/* Now, in ticks of the first session's clock. */
uint64_t sl_ticks(void) { return sl_ticks_of(sl.level[0].page); }

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
	before = sl_ticks();
	r = raw(nr, a[0], a[1], a[2], a[3], a[4], sixth(nr, a));
	took = sl_ticks() - before;
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
