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
#include "shim.h"
#include "gate.h"
#include <stdarg.h>


__attribute__((visibility("hidden"))) struct sl_marks sl_marks;

/* Whether this process, in which nothing is put off, may have descriptors that lost their flag. */
int sl_outside_with_marks(void) { return sl.outside && sl_marks.here; }

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
	    (sl.outside || sl_type(fd, "", 0x1000 /* EMPTY_PATH */) == S_IFREG_))
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
	enum { INO = 0x20 / 8, DEV = 0x88 / 8 };
	uint64_t of_a[32], of_b[32];
	int at = 0x1000 | 0x4000; /* EMPTY_PATH, DONT_SYNC */

	return !is_error(raw5(NR_statx, a, "", at, 0x100 /* INO */, of_a)) &&
	       !is_error(raw5(NR_statx, b, "", at, 0x100, of_b)) && of_a[INO] == of_b[INO] &&
	       of_a[DEV] == of_b[DEV];
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

/* Waits for the ledger to have the file system of FD. Returns what becomes of a request by then.
 * Where that took too long, nobody waits for the next five leases. */
int sl_wait_for_ledger(int fd)
{
	static uint32_t nobody_rings;
	static uint64_t not_before; /* ticks */
	int kept = SL_KEPT_LEDGER, ms;

	if (LOAD_RELAXED(not_before) > sl_ticks())
		return kept;
	for (ms = 0; kept == SL_KEPT_LEDGER && ms < PATIENCE_MS; ms++) {
		sl_futex_wait(&nobody_rings, 0, 1);
		kept = sl_would_keep(fd);
	}
	if (kept == SL_KEPT_LEDGER)
		STORE(not_before, sl_ticks() + 5 * sl.level[0].page->lease_span);
	return kept;
}

/* There are marks, or soon will be: told before the file is opened, so that who writes meanwhile
 * looks for one, and who finds no stack in the gate waits for one. */
static void tell_of_marks(void)
{
	unsigned i;

	sl_marks.here = 1;
	for (i = 0; i < sl.levels; i++)
		STORE(sl.level[i].slots->stripped, 1);
}

/* Whether the kernel has to do it for this file. The flag is taken off only where its file system
 * may owe: then what the libc writes by itself (stdio), unseen, is settled with the rest. */
static int stays_real(int fd)
{
	int kept = LATER;

	tell_of_marks();
	if (!sl.alone)
		kept = sl_would_keep(fd);
	if (kept == SL_KEPT_LEDGER)
		kept = sl_wait_for_ledger(fd);
	return kept != LATER;
}

/* What becomes of the O_SYNC of an open. A file that is there is looked at before, so that it is
 * opened once: who closes another descriptor of it loses its locks (fcntl(2)), and whoever watches
 * its folder is told that somebody who could write has closed it (inotify(7)). So for one that is
 * to be made it is its folder that is looked at; REPLACE is what is left where that stays real. */
enum { AS_ASKED, OPEN_WITHOUT, MAKE_WITHOUT, REPLACE };

/* Whether what PROBE, an O_PATH descriptor, leads to has to be left to the kernel. Closes it. */
static int probed_stays_real(long probe)
{
	int stays;

	sl_forget((int)probe);
	stays = stays_real((int)probe);
	sl_forget((int)probe);
	raw1(NR_close, probe);
	return stays;
}

/* Of a file that is to be made in the folder FOLDER, which is opened with O_PATH, or the error of
 * that. */
static int how_to_make(long folder)
{
	tell_of_marks();
	return !is_error(folder) && !probed_stays_real(folder) ? MAKE_WITHOUT : REPLACE;
}

/* Of a file that is there, by PROBE, which is opened with O_PATH. */
static int how_to_open(long probe)
{
	if (sl_type((int)probe, "", 0x1000 /* EMPTY_PATH */) == S_IFREG_)
		return probed_stays_real(probe) ? AS_ASKED : OPEN_WITHOUT;
	raw1(NR_close, probe);
	return AS_ASKED;
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
static long mark(int fd, int flags, int is_new)
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
static long replace(int fd, int flags)
{
	long fresh, real;
	int done = 0;

	if (sl_type(fd, "", 0x1000) != S_IFREG_ || stays_real(fd))
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

/* Notes what was opened, of whose FLAGS O_SYNC was, or is to be, taken. */
static long opened(long fd, int flags, int how)
{
	long is_real = !!(flags & O_DSYNC_);

	if (is_error(fd))
		return fd;
	sl_forget((int)fd);
	if (flags & O_PATH_)
		return fd;
	if (UNLIKELY(how != AS_ASKED))
		is_real = how == REPLACE ? replace((int)fd, flags)
					 : mark((int)fd, flags, how == MAKE_WITHOUT);
	if (UNLIKELY(is_error(is_real))) {
		raw1(NR_close, fd);
		return is_real;
	}
	if (!sl_active())
		return fd;
	sl_note_opened((int)fd);
	if (UNLIKELY(is_real))
		sl_slot_flag(SL_SLOT_OSYNC_KEPT);
	return fd;
}

/* The flags for the open itself. What is made is to be new, so that it is an ordinary file. */
static int by(int how, int flags)
{
	int without = flags & ~(O_SYNC_BIT_ | O_DSYNC_);

	if (how == MAKE_WITHOUT && !(flags & O_TMPFILE_BIT_))
		return without | O_EXCL_;
	return how == OPEN_WITHOUT || how == MAKE_WITHOUT ? without : flags;
}

/* Whether the open of a file that was to be made, which gave R, is to be tried as it was asked: it
 * has been made meanwhile, or its name is a link that leads nowhere. */
static int is_there_already(long r, int flags, int *how)
{
	if (LIKELY(r != -EEXIST_ || *how != MAKE_WITHOUT || flags & O_EXCL_))
		return 0;
	*how = REPLACE;
	return 1;
}

/* Whether an open asks that every write be synced. */
static int asks_for_sync(int flags)
{
	return flags & O_DSYNC_ && flags & O_ACCMODE_ && !(flags & O_PATH_);
}

/* Whether a flag that was taken off would come back wherever the descriptor goes. What a program
 * executes that was attached has no gate, unless it is followed: O_SYNC would be gone for good. */
static int may_take(int flags)
{
#ifdef SL_GATE
	if ((!(flags & O_CLOEXEC_) && !sl.followed) || sl.keeps_sync)
		return 0;
#endif
	return UNLIKELY(asks_for_sync(flags)) && sl_active() && sl_maybe_later();
}

#define PROBE (O_PATH_ | O_CLOEXEC_)

/* A reference to what an open by a name would open, bound by the same RESOLVE_ flags. */
static long probe_at(int dir, const char *path, int flags, uint64_t resolve)
{
	struct {
		uint64_t flags, mode, resolve;
	} how = { PROBE | (uint64_t)(flags & (O_NOFOLLOW_ | O_DIRECTORY_)), 0, resolve };

	if (!resolve)
		return raw4(NR_openat, dir, path, (long)how.flags, 0);
	return raw4(NR_openat2, dir, path, &how, sizeof how);
}

/* The same of the folder that PATH lies in, which the kernel has just read. */
static long probe_folder(int dir, const char *path, uint64_t resolve)
{
	char folder[512];
	unsigned n, end = 0;

	for (n = 0; path[n]; n++) {
		if (n == sizeof folder - 1)
			return -ENAMETOOLONG_;
		folder[n] = path[n];
		if (path[n] == '/')
			end = n + 1;
	}
	folder[end] = 0;
	return probe_at(dir, end ? folder : ".", O_DIRECTORY_, resolve);
}

/* What becomes of the O_SYNC of an open by a name. */
static int how_by_name(int dir, const char *path, int flags, uint64_t resolve)
{
	long probe;

	if (!may_take(flags))
		return AS_ASKED;
	if (flags & O_TMPFILE_BIT_)
		return how_to_make(probe_at(dir, path, O_DIRECTORY_, resolve));
	probe = probe_at(dir, path, flags & O_NOFOLLOW_, resolve);
	if (!is_error(probe))
		return how_to_open(probe);
	return probe == -ENOENT_ && flags & O_CREAT_
		       ? how_to_make(probe_folder(dir, path, resolve))
		       : AS_ASKED;
}

long sl_open_at(int dir, const char *path, int flags, unsigned mode)
{
	int how = how_by_name(dir, path, flags, 0);
	long fd;

	do
		fd = sl_cancellable(NR_openat, dir, (long)path, by(how, flags), mode, 0,
				    sl_cookie());
	while (is_there_already(fd, flags, &how));
	return opened(fd, flags, how);
}

static unsigned mode_of(int flags, va_list more)
{
	return flags & (O_CREAT_ | O_TMPFILE_BIT_) ? va_arg(more, unsigned) : 0;
}

/* An open that asks for no sync, at one look. */
static ALWAYS_INLINE long open_plain(int dir, const char *path, int flags, unsigned mode)
{
	long fd = sl_cancellable(NR_openat, dir, (long)path, flags, mode, 0, sl_cookie());

	if (LIKELY(!is_error(fd)))
		sl_forget_one((int)fd);
	return fd;
}

#define OPEN_AT(dir, path, flags, mode)                                           \
	(int)sl_set(sl_is_plain() && !((flags) & (O_DSYNC_ | O_SYNC_BIT_)) ?      \
			    open_plain(dir, path, flags, mode) :                  \
			    TIMED_OPEN(dir, path, flags, CALLER,                  \
				       sl_open_at(dir, path, flags, mode)))

#define OPEN(name, extra)                                               \
	EXPORT int name(const char *path, int flags, ...)               \
	{                                                               \
		va_list more;                                           \
		unsigned mode;                                          \
                                                                        \
		va_start(more, flags);                                  \
		mode = mode_of(flags, more);                            \
		va_end(more);                                           \
		return OPEN_AT(AT_FDCWD_, path, flags | (extra), mode); \
	}

#define OPENAT(name, extra)                                        \
	EXPORT int name(int dir, const char *path, int flags, ...) \
	{                                                          \
		va_list more;                                      \
		unsigned mode;                                     \
                                                                   \
		va_start(more, flags);                             \
		mode = mode_of(flags, more);                       \
		va_end(more);                                      \
		return OPEN_AT(dir, path, flags | (extra), mode);  \
	}

#ifdef __i386__
#define LARGE O_LARGEFILE_
#else
#define LARGE 0
#endif

OPEN(open, 0)
OPEN(open64, LARGE)
OPENAT(openat, 0)
OPENAT(openat64, LARGE)

/* What a fortified build calls where it knows that no mode is given. To create a file that way is a
 * bug that glibc ends the program for; this is the only place where the shim does. */
static void refuse_creation(int flags)
{
	if (flags & O_CREAT_ || (flags & O_TMPFILE_BIT_ && flags & O_DIRECTORY_))
		raw2(NR_kill, raw0(NR_getpid), 6 /* SIGABRT */);
}

#define OPEN_2(name, extra)                                          \
	EXPORT int name(const char *path, int flags)                 \
	{                                                            \
		refuse_creation(flags);                              \
		return OPEN_AT(AT_FDCWD_, path, flags | (extra), 0); \
	}

#define OPENAT_2(name, extra)                                  \
	EXPORT int name(int dir, const char *path, int flags)  \
	{                                                      \
		refuse_creation(flags);                        \
		return OPEN_AT(dir, path, flags | (extra), 0); \
	}

OPEN_2(__open_2, 0)
OPEN_2(__open64_2, LARGE)
OPENAT_2(__openat_2, 0)
OPENAT_2(__openat64_2, LARGE)

/* openat2(2): the flags stand in a structure behind a pointer. */
struct how {
	const void *from;
	size_t size;
	union {
		uint64_t flags;
		uint64_t words[32];
	} h;
};

/* Copies the flags; the structure may lie anywhere. */
static int has_copied(struct how *how)
{
	return how->size >= 24 && how->size <= sizeof how->h && sl_active() &&
	       sl_copy_in(&how->h, how->from, how->size) > 0;
}

/* What becomes of its O_SYNC: the RESOLVE_ flags are the third word. */
static int how_by(int dir, const char *path, const struct how *how)
{
	return how_by_name(dir, path, (int)how->h.flags, how->h.words[2]);
}

/* By our copy: the program's may be another by the time of the call. */
static long open_how(int dir, const char *path, struct how *how, int becomes)
{
	int flags = (int)how->h.flags;
	uint64_t others = how->h.flags & ~(uint64_t)UINT32_MAX;
	long fd;

	do {
		how->h.flags = others | (uint32_t)by(becomes, flags);
		fd = sl_cancellable(NR_openat2, dir, (long)path, (long)&how->h, (long)how->size, 0,
				    sl_cookie());
	} while (is_there_already(fd, flags, &becomes));
	return opened(fd, flags, becomes);
}

long sl_open_how(int dir, const char *path, const void *from, size_t size)
{
	struct how how;
	int becomes = AS_ASKED;
	long fd;

	how.from = from, how.size = size;
	if (has_copied(&how))
		becomes = how_by(dir, path, &how);
	if (becomes != AS_ASKED)
		return open_how(dir, path, &how, becomes);
	fd = sl_cancellable(NR_openat2, dir, (long)path, (long)from, (long)size, 0, sl_cookie());
	return opened(fd, O_RDWR_, AS_ASKED);
}

EXPORT int openat2(int dir, const char *path, const void *how, size_t size)
{
	return (int)sl_set(TIMED_OPEN(dir, NULL, 0, CALLER, sl_open_how(dir, path, how, size)));
}

static int how_handle(int mount, void *handle, int flags)
{
	long probe;

	if (!may_take(flags))
		return AS_ASKED;
	probe = raw3(NR_open_by_handle_at, mount, handle, PROBE);
	return is_error(probe) ? AS_ASKED : how_to_open(probe);
}

static long open_handle(int mount, void *handle, int flags, int how)
{
	long fd = sl_cancellable(NR_open_by_handle_at, mount, (long)handle, by(how, flags), 0, 0,
				 sl_cookie());

	return opened(fd, flags, how);
}

long sl_open_handle(int mount, void *handle, int flags)
{
	return open_handle(mount, handle, flags, how_handle(mount, handle, flags));
}

EXPORT int open_by_handle_at(int mount, void *handle, int flags)
{
	return (int)sl_set(TIMED_OPEN(mount, NULL, flags, CALLER,
				      sl_open_handle(mount, handle, flags)));
}

#ifdef SL_GATE
/* The same in a program that ran before: what is not changed is made by its own instruction, as by
 * SL_AT_SITE. */
uint32_t *sl_stripped_at;

/* An open that the program makes by itself. PATH NULL: it is not known. */
static long leave_open(int dir, const char *path, int flags)
{
	long type;

	if (UNLIKELY(flags & O_PATH_))
		sl_forget(-1);
	if (UNLIKELY(asks_for_sync(flags))) {
		type = path ? sl_type(dir, path, 0) : S_IFREG_;
		if (type == S_IFREG_ || (is_error(type) && flags & O_CREAT_))
			sl_slot_flag(SL_SLOT_OSYNC_KEPT);
	}
	return SL_AT_SITE;
}

/* An open that loses its flag is made here, by the program's own number NR: a filter that the
 * program has may forbid the other one. */
long sl_gate_open(long nr, int dir, const char *path, int flags, unsigned mode)
{
	int how = how_by_name(dir, path, flags, 0);
	long fd;

	if (how == AS_ASKED)
		return leave_open(dir, path, flags);
	do {
		int asked = by(how, flags);

		if (nr == NR_open)
			fd = raw6(NR_open, path, asked, mode, 0, 0, sl_cookie());
		else
			fd = raw6(NR_openat, dir, path, asked, mode, 0, sl_cookie());
	} while (is_there_already(fd, flags, &how));
	return opened(fd, flags, how);
}

long sl_gate_open_how(int dir, const char *path, const void *from, size_t size)
{
	struct how how;
	int becomes = AS_ASKED;

	how.from = from, how.size = size, how.h.flags = O_PATH_; /* maybe */
	if (sl_maybe_later() && has_copied(&how))
		becomes = how_by(dir, path, &how);
	if (becomes != AS_ASKED)
		return open_how(dir, path, &how, becomes);
	return leave_open(dir, path, (int)how.h.flags);
}

long sl_gate_open_handle(int mount, void *handle, int flags)
{
	int how = how_handle(mount, handle, flags);

	if (how != AS_ASKED)
		return open_handle(mount, handle, flags, how);
	return leave_open(mount, NULL, flags);
}
#endif
