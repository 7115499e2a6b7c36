/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Room for what a small stack has none for: notes, paths, what statx tells.
 *
 * A call may come from a coroutine or a signal's stack that is hardly larger than what the kernel's
 * own call needs. So what is large lies in pieces of our memory, each of which is its taker's alone
 * until it is left. A piece that is never left, by a handler that jumps out of one of our calls or
 * by a thread that is cancelled there, is lost; where none is free the stack has to do.
 *
 * Promise: nobody waits for a piece. A forked child keeps those that are in use, and what is in
 * them: it may be in the middle of a call, too.
 */
#include "core/core.h"

static uint32_t taken[SL_ROOMS / 32];
static char *first;

#ifdef SL_GATE
struct lane sl_lanes[LANES];
#endif

/* The pieces lie at AT, or nowhere (NULL). */
void sl_rooms_at(char *at) { first = at; }

/* A free piece, or NULL. */
char *sl_room(void)
{
	unsigned i;

	for (i = 0; first && i < SL_ROOMS / 32; i++) {
		uint32_t there = LOAD_RELAXED(taken[i]);

		while (~there) {
			unsigned k = (unsigned)__builtin_ctz(~there);

			if (CAS(taken[i], there, there | 1u << k))
				return first + (size_t)(i * 32 + k) * SL_ROOM_BYTES;
			there = LOAD_RELAXED(taken[i]);
		}
	}
	return NULL;
}

/* How many bytes ROOM has, where it has LEAST if it is on the stack. */
uint32_t sl_room_size(const void *room, uint32_t least)
{
	return first && (size_t)((const char *)room - first) < (size_t)SL_ROOMS * SL_ROOM_BYTES
		       ? SL_ROOM_BYTES
		       : least;
}

/* ROOM is not used any more. */
void sl_leave(const void *room)
{
	unsigned k;

	if (sl_room_size(room, 0) == 0)
		return;
	k = (unsigned)((size_t)((const char *)room - first) / SL_ROOM_BYTES);
	__atomic_fetch_and(&taken[k / 32], ~(1u << k % 32), __ATOMIC_SEQ_CST);
}
