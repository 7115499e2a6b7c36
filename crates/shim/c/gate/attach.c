/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Joining a session in a process that runs already: what it needs was brought by the tracer.
 *
 * Promise: a page or slots of another version are as if there were none. A process may join one
 * session after another; what another thread of it still holds of an earlier one stays mapped, or
 * is that of the next: the addresses are the same.
 */
#include "gate/gate.h"
#include "routes/routes.h"

#ifdef SL_GATE

static const void *map_at(uint64_t at, uint32_t size, int prot, int fd)
{
	long p = raw6(NR_mmap, at, size, prot, MAP_SHARED_ | MAP_FIXED_, fd, 0);

	return is_error(p) ? NULL : (const void *)p;
}

static int is_good(const struct sl_page *p, const struct sl_slots *s, const struct sl_errand *e)
{
	return p->magic == SL_PAGE_MAGIC && p->version == SL_VERSION &&
	       p->size <= e->page_size && s->magic == SL_SLOTS_MAGIC && s->version == SL_VERSION;
}

/* Whether this thread may read the counter that tells the time. */
static int has_clock(const struct sl_page *p)
{
	int counter = 1; /* PR_TSC_ENABLE */

	raw2(NR_prctl, 25 /* PR_GET_TSC */, &counter);
	return p->clock != SL_CLOCK_TSC || counter == 1;
}

/* What this process kept of an earlier session is nothing to the next. */
static int begin_anew(void)
{
	if (!sl_mine)
		return sl_make_mine();
	STORE(sl_mine->slot[0], NULL);
	sl_forget_recording();
	sl_forget(-1);
	return 1;
}

/* Joins the session whose page and slots are PAGE and SLOTS; EXE is executed, where that is known.
 * Returns 0, -errno or SL_ERRAND_NO_CLOCK. */
long sl_attach(const struct sl_errand *e, const char *exe, int page, int slots)
{
	struct level *l = &sl.level[0];
	uint32_t i;

	/* What was marked is synced all the while, also where we fail. */
	if (e->flags_of & SL_ERRAND_MARKED)
		sl_marks.here = 1;
	__atomic_store_n(&sl_stripped_at, &sl_marks.here, __ATOMIC_SEQ_CST);
	STORE(sl.levels, 0);
	STORE(sl_marks.let_go, 0);
	l->page = map_at(e->page, e->page_size, PROT_READ_, page);
	l->slots = (struct sl_slots *)(uintptr_t)map_at(e->slots, e->slots_size,
							PROT_READ_ | PROT_WRITE_, slots);
	l->owner = sl_owner_of(page);
	if (!l->page || !l->slots)
		return -ENOMEM_;
	if (!is_good(l->page, l->slots, e))
		return -EINVAL_;
	if (!has_clock(l->page))
		return SL_ERRAND_NO_CLOCK;
	if (!begin_anew())
		return -ENOMEM_;
	for (i = 0; i < SL_RULE_MAX / 32; i++)
		l->rule_bits[i] = 0;
	l->fixed = 0;
	l->rings_path[0] = 0; /* asked for: behind another root it could be anybody's */
	if (l->page->rule_count)
		sl_apply_exe_rules(l, exe);
	if (sl_marks.here)
		STORE(l->slots->stripped, 1);
	sl.followed = e->flags_of & SL_ERRAND_FOLLOWED;
	sl.keeps_sync = e->flags_of & SL_ERRAND_RINGS;
	sl.pid_ns = e->pid_ns;
	if (!LOAD_RELAXED(sl_mine->known)) /* forked since it was let go of */
		sl_begin_life();
	sl_meet_kin(e->pid);
	/* Who is in such a call is in the gate since a session before this one: `tries` knows. */
	STORE(sl.outside, 0);
	STORE(sl.levels, 1);
	STORE(sl.ready, 2);
	__atomic_store_n(&sl_stripped_at, &l->slots->stripped, __ATOMIC_SEQ_CST);
	return 0;
}

#endif
