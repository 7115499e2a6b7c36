/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The slot of this process in each session, its counters, and how the supervisor is woken.
 *
 * Promise: a request is counted by an atomic add, a full barrier, before anything is decided about
 * it (decide.c says why). Counters lie in eight lines, so that threads seldom share one.
 */
#include "core/core.h"

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
