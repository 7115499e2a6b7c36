/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * O_SYNC and O_DSYNC: every write to such a descriptor is a sync request.
 *
 * Where the verdict is that a request for the file may be put off, it is opened without the flag,
 * and marked; the requests that its writes imply are then answered late or made for real, like any
 * other. Everything else (a rule, a file system that is not on the tested list or not in the
 * ledger) keeps the flag: the kernel does it. Where the ledger has not said yet, the open waits.
 *
 * F_SETFL can neither take the flag nor bring it (open(2), fcntl(2)), and it has to come back when
 * the relaxation ends. So the description is marked: F_SETSIG survives dup, exec and SCM_RIGHTS,
 * and a fresh open has none. The marks are the signal numbers that the libcs keep for themselves
 * (32, 33), which no program can mean. A write to a marked description is followed by the request
 * that it implies, where that may be answered late; otherwise the kernel makes it with the write
 * (RWF_DSYNC). F_GETFL shows the flag.
 * A program that uses F_SETSIG itself wins: from then on every write of it counts as marked. Not
 * seen: writes that the libc makes inside (stdio on fdopen), see docs/LIMITS.md.
 */
#include "routes/routes.h"

/* Whether this process, in which nothing is put off, may have descriptors that lost their flag. */
int sl_outside_with_marks(void) { return sl_is_outside() && sl_marks.here; }

/* Whether any description of any session may bear a mark. Behind a filter of its own a process
 * looks only where it has put marks itself, or inherited them: then the call that reads them is
 * worth the risk. So it is between two sessions, and while it joins one. */
int sl_any_stripped(void)
{
	unsigned i;

#ifdef SL_GATE
	/* First: the slots may be exchanged for the next session's behind any other look. */
	if (LOAD_RELAXED(sl_marks.here))
		return 1;
	if (!sl_active())
		return 0;
#endif
	if (!sl_active())
		return sl_outside_with_marks();
	for (i = 0; i < sl.levels; i++)
		if (LOAD_RELAXED(sl.level[i].slots->stripped))
			return 1;
	return 0;
}

/* 0, or the flags that were taken off FD. */
int sl_mark_of(int fd)
{
	long sig = raw3(NR_fcntl, fd, F_GETSIG_, 0);

	if (sig == SL_MARK_SYNC)
		return O_SYNC_BIT_ | O_DSYNC_;
	return sig == SL_MARK_DSYNC ? O_DSYNC_ : 0;
}

/* The RWF_ flags that stand for what was taken off FD, or 0. */
int sl_mark_flags(int fd)
{
	int mark;

	if (LIKELY(!sl_any_stripped()))
		return 0;
	mark = sl_mark_of(fd);
	if (!mark && sl_marks.lost &&
	    (sl_is_outside() || sl_type(fd, "", 0x1000 /* EMPTY_PATH */) == S_IFREG_))
		mark = O_SYNC_BIT_ | O_DSYNC_;
	return !mark ? 0 : mark & O_SYNC_BIT_ ? 4 /* RWF_SYNC */ : 2 /* RWF_DSYNC */;
}

/* After N bytes went to FD: the request that an O_SYNC description implies. By then the number may
 * be another file's: what is to be real is made with the write, where it can be (writes.c). */
long sl_written(int fd, long n, uint64_t caller)
{
	int mark;
	long r;

	if (LIKELY(n <= 0))
		return n;
	sl_note_written(fd, n);
	if (LIKELY(!sl_any_stripped()))
		return n;
	mark = sl_mark_of(fd);
	if (!mark && sl_marks.lost)
		mark = O_SYNC_BIT_ | O_DSYNC_;
	if (!mark || is_error(raw_sync_file_range(fd, 0, 1, 0)))
		return n;
	r = sl_sync_written(fd, !(mark & O_SYNC_BIT_),
			    mark & O_SYNC_BIT_ ? SL_KIND_OSYNC : SL_KIND_ODSYNC, caller);
	return is_error(r) && r != -EBADF_ && r != -EINVAL_ ? r : n;
}

/* Whether two descriptors are of one file. */
static int is_same_file(int a, int b)
{
	struct place of_a, of_b;

	return !is_error(sl_place(a, &of_a)) && !is_error(sl_place(b, &of_b)) &&
	       of_a.inode == of_b.inode && of_a.dev == of_b.dev;
}

/* Another description of FD, with those of FLAGS that it can have. Its number is what this thread
 * has under it: the fresh one is compared all the same, since it takes the other's place. */
static long opened_again(int fd, int flags)
{
	int keep = flags & (O_ACCMODE_ | O_APPEND_ | O_NONBLOCK_ | O_DIRECT_ | O_LARGEFILE_ |
			    O_NOATIME_ | O_SYNC_BIT_ | O_DSYNC_);
	long fds = sl_open_fds(), r;
	char name[12];

	if (is_error(fds))
		return fds;
	sl_digits(fd, name);
	r = raw6(NR_openat, fds, name, keep | O_CLOEXEC_ | O_NOCTTY_, 0, 0, sl_cookie());
	raw1(NR_close, fds);
	if (is_error(r) || is_same_file((int)r, fd))
		return r;
	raw1(NR_close, r);
	return -ENOENT_;
}

/* Whether something may still be put off. The gate is taken out of a program at some time; what is
 * marked then is looked for behind the end of the relaxation, and by that time every mark that we
 * still make has to be there. */
static int is_in_time(void)
{
#ifdef SL_GATE
	unsigned i;

	if (!sl_active())
		return 0;
	for (i = 0; i < sl.levels; i++)
		if (!LOAD(sl.level[i].page->relax) || !sl_lease_runs(sl.level[i].page))
			return 0;
#endif
	return 1;
}

#define PATIENCE_MS 500

/* Waits for the ledger to have the file system of FD. Returns what becomes of a request by then,
 * for rules by PATH, if there is one. Where that took too long, nobody waits for the next five
 * leases. */
static int wait_for_ledger(int fd, const char *path)
{
	static uint32_t nobody_rings;
	static uint64_t not_before; /* ticks */
	int kept = SL_KEPT_LEDGER, ms;

	if (LOAD_RELAXED(not_before) > sl_ticks())
		return kept;
	for (ms = 0; kept == SL_KEPT_LEDGER && ms < PATIENCE_MS; ms++) {
		sl_futex_wait(&nobody_rings, 0, 1);
		kept = sl_would_keep_as(fd, path);
	}
	if (kept == SL_KEPT_LEDGER)
		STORE(not_before, sl_ticks() + 5 * sl.level[0].page->lease_span);
	return kept;
}

int sl_wait_for_ledger(int fd) { return wait_for_ledger(fd, NULL); }

/* There are marks, or soon will be: told before the file is opened, so that who writes meanwhile
 * looks for one, and who finds no stack in the gate waits for one. */
void sl_tell_of_marks(void)
{
	unsigned i;

	sl_marks.here = 1;
	for (i = 0; i < sl.levels; i++)
		STORE(sl.level[i].slots->stripped, 1);
}

/* Whether the kernel has to do it for this file, or for one of the name PATH where FD lies. The
 * flag is taken off only where its file system may owe: then what the libc writes by itself
 * (stdio), unseen, is settled with the rest. */
int sl_stays_real(int fd, const char *path)
{
	int kept = LATER;

	sl_tell_of_marks();
	if (!sl.alone)
		kept = sl_would_keep_as(fd, path);
	if (kept == SL_KEPT_LEDGER)
		kept = wait_for_ledger(fd, path);
	return kept != LATER;
}

/* FD has no O_SYNC: marks it. 0 where the kernel has to do it after all. */
static int is_marked(int fd, int flags)
{
	long signal = flags & O_SYNC_BIT_ ? SL_MARK_SYNC : SL_MARK_DSYNC;

	return !is_error(raw3(NR_fcntl, fd, F_SETSIG_, signal)) && is_in_time() &&
	       (sl.alone || sl_owes_unseen(fd) == LATER);
}

/* Whether the file system of FD may owe again: an umount of it fails while a file is open there. */
static int may_owe_again(int fd) { return !sl.alone && sl_wait_for_ledger(fd) == LATER; }

/* Whether anybody has POSIX locks on the file of FD: this process would lose its own with the
 * description that is replaced. */
static int has_locks(int fd)
{
	struct {
		int16_t type, whence;
#if __SIZEOF_LONG__ == 8
		int32_t gap;
#endif
		int32_t start[2], length[2], pid, end;
	} lock = { .type = 1 /* F_WRLCK */ };

	return !is_error(raw3(NR_fcntl, fd, 36 /* F_OFD_GETLK */, &lock)) &&
	       lock.type != 2 /* F_UNLCK */;
}

/* FD was opened without the O_SYNC of FLAGS. 0, 1 where it has that again, or -errno: no file may
 * go on without. Where that would cost locks, or a new file cannot be opened again (its mode), it
 * goes on marked: what is seen to be written there is synced. */
long sl_mark(int fd, int flags, int is_new)
{
	long fresh, r;

	if (is_marked(fd, flags) || (may_owe_again(fd) && is_marked(fd, flags)) || has_locks(fd))
		return 0;
	fresh = opened_again(fd, flags);
	if (is_error(fresh))
		return is_new ? 0 : fresh;
	r = raw3(NR_dup3, fresh, fd, flags & O_CLOEXEC_);
	raw1(NR_close, fresh);
	return is_error(r) ? r : 1;
}

/* FD, a new file, was opened with the O_SYNC of FLAGS: puts a description without it in its place.
 * 1 where it stays as it is. */
long sl_replace(int fd, int flags)
{
	long fresh, real;
	int done = 0;

	if (sl_type(fd, "", 0x1000) != S_IFREG_ || sl_stays_real(fd, NULL))
		return 1;
	fresh = opened_again(fd, flags & ~(O_SYNC_BIT_ | O_DSYNC_));
	real = raw3(NR_fcntl, fd, F_DUPFD_CLOEXEC_, 0);
	if (!is_error(fresh) && !is_error(real)) {
		done = !is_error(raw3(NR_dup3, fresh, fd, flags & O_CLOEXEC_));
		if (done && !is_marked(fd, flags))
			done = is_error(raw3(NR_dup3, real, fd, flags & O_CLOEXEC_));
	}
	if (!is_error(real))
		raw1(NR_close, real);
	if (!is_error(fresh))
		raw1(NR_close, fresh);
	return !done;
}
