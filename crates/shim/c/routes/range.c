/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Calls that ask for a part of a file.    answered later   errno       no session
 *   sync_file_range (fd, at, n, flags)    0                untouched   real call
 *   pwritev2 (…, RWF_DSYNC | RWF_SYNC)    bytes written    untouched   real call
 *
 * A bad argument fails as in the kernel: we ask it by sync_file_range with flags 0, which checks
 * the same and writes nothing. Exceptions: docs/LIMITS.md.
 */
#include "routes/routes.h"

#define RWF_DSYNC_ 2
#define RWF_SYNC_  4

#define SFR_VALID 7u

typedef long make_real(int why, int hint, long nr, const long args[6]);

/* Carries out a hint that was counted and decided; REAL makes it where it is real. */
static long do_hint(const struct verdict *v, int fd, int64_t at, int64_t n, unsigned flags,
		    make_real *real)
{
	if (v->kept == LATER)
		return v->error ? -v->error : sl_owe(v);
#if __SIZEOF_LONG__ == 8
	return real(v->kept, 1, NR_sync_file_range, (const long[6]){ fd, at, n, flags });
#else
	return real(v->kept, 1, NR_sync_file_range,
		    (const long[6]){ fd, (long)at, (long)(at >> 32), (long)n, (long)(n >> 32),
					(long)flags });
#endif
}

long sl_hint(int fd, int64_t at, int64_t n, unsigned flags, uint64_t caller)
{
	struct verdict v;
	struct note *note;
	long r;

	if (!sl_active())
		return raw_sync_file_range(fd, at, n, flags);
	/* Unknown flags are refused before anything is written. */
	r = raw_sync_file_range(fd, at, n, flags & ~SFR_VALID ? flags : 0);
	if (sl.alone || is_error(r))
		return r;
	sl_count_request(1);
	sl_decide(&v, fd);
	note = NOTE(SL_KIND_RANGE, fd, caller);
	if (LIKELY(!note))
		return do_hint(&v, fd, at, n, flags, sl_real_in_place);
	note->e.flags = flags;
	note->e.has &= (uint16_t)~SL_HAS_BYTES; /* they stay owed */
	sl_note_written(fd, (long)note->e.bytes);
	if (v.kept != LATER)
		sl_note_real(note);
	r = do_hint(&v, fd, at, n, flags, sl_real);
	sl_note_end(note, &v, sl_done_as(&v), r);
	return r;
}

EXPORT int sync_file_range(int fd, int64_t at, int64_t n, unsigned flags)
{
	if (gnu_get_libc_version) /* no cancellation point in musl */
		testcancel();
	return (int)sl_set(sl_hint(fd, at, n, flags, CALLER));
}

/* pwritev2 after its arguments: the RWF_ flags that ask for durability become a debt. */
long sl_write_flagged(int fd, const void *iov, int n, int64_t at, int flags, uint64_t caller)
{
	unsigned kind = flags & RWF_SYNC_ ? SL_KIND_RWF_SYNC : SL_KIND_RWF_DSYNC;
	/* What lost its O_SYNC asks for that as well. */
	int asks = flags & (RWF_DSYNC_ | RWF_SYNC_), mark = asks ? sl_mark_flags(fd) : 0;
	int asked = asks | mark;
	/* What sync_file_range refuses is no file: the flag has no effect there, and is passed on. */
	int counts = asked && sl_active() && !is_error(raw_sync_file_range(fd, 0, 1, 0));
	/* First, for this file: some files that sync_file_range takes refuse the flag (proc(5)). */
	int kept = counts && sl_maybe_later() ? sl_owes_unseen(fd) : (int)SL_KEPT_NOW;
	int later = counts && kept == LATER;
	struct verdict now = { .kept = kept };
	struct note *note = NULL;
	long r, s;

	if (!asked)
		return sl_write_call(fd, 1, NR_pwritev2,
				     (const long[6]){ fd, (long)iov, n, (long)at,
						      __SIZEOF_LONG__ == 8 ? 0 : (long)(at >> 32),
						      flags },
				     caller);
	if (counts && !later)
		note = NOTE(kind, fd, caller);
	sl_note_real(note);
	r = sl_cancellable(NR_pwritev2, fd, (long)iov, n, (long)at,
			   __SIZEOF_LONG__ == 8 ? sl_cookie() : (long)(at >> 32),
			   later ? flags & ~asked : flags | mark);
	if (!counts || r <= 0) {
		sl_note_drop(note);
		return r;
	}
	if (!later) {
		sl_count_request(0);
		sl_count_kept(kept, 0);
		if (note) {
			note->e.bytes += (uint64_t)r;
			note->e.flags = (uint32_t)flags;
		}
		sl_note_end(note, &now, SL_DONE_REAL, r);
		return r;
	}
	sl_note_written(fd, r);
	s = sl_sync_written(fd, !(asked & RWF_SYNC_), kind, caller);
	/* It was good when it was written to: the number is nobody's, or a pipe's, by now. */
	return is_error(s) && s != -EBADF_ && s != -EINVAL_ ? s : r;
}

EXPORT long pwritev2(int fd, const void *iov, int n, long at, int flags)
{
	return (long)sl_set(sl_write_flagged(fd, iov, n, at, flags, CALLER));
}

EXPORT long pwritev64v2(int fd, const void *iov, int n, int64_t at, int flags)
{
	return (long)sl_set(sl_write_flagged(fd, iov, n, at, flags, CALLER));
}
