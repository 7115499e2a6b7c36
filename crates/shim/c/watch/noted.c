/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The fsync kin where a recording is made: the steps of core/fsync.c, with a note of each.
 *
 * Promise: a request is answered as one that is not recorded.
 */
#include "watch/watch.h"

unsigned sl_done_as(const struct verdict *v)
{
	if (v->kept != LATER)
		return SL_DONE_REAL;
	return v->error ? SL_DONE_NOTHING : SL_DONE_OWED;
}

/* Carries out the verdict of a request that is recorded. */
static long answer_noted(const struct verdict *v, long nr, int fd, struct note *n)
{
	unsigned done = sl_done_as(v);
	long r;

	if (done == SL_DONE_REAL) {
		sl_note_real(n);
		r = sl_real_one(v->kept, nr, fd);
	} else {
		r = sl_answer(v, nr, fd);
	}
	sl_note_end(n, v, done, r);
	return r;
}

/* Decides for a request that was counted already, and records it. */
long sl_sync_noted(long nr, int fd, unsigned kind, uint64_t caller)
{
	struct verdict v;
	struct note *n = NOTE(kind, fd, caller);
	int is_checked = nr == NR_sync || (n && n->good && nr != NR_syncfs);
	long r = 0;

	if (!is_checked && sl_maybe_later())
		r = sl_check_sync(nr, fd);
	if (UNLIKELY(is_error(r))) {
		sl_count_failed(0);
		sl_note_end(n, NULL, SL_DONE_NOTHING, r);
		return r;
	}
	sl_decide(&v, fd);
	return answer_noted(&v, nr, nr == NR_sync ? 0 : fd, n);
}
