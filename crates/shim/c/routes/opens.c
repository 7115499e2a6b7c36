/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The opens: what becomes of the O_SYNC that they ask for (osync.c says why).
 */
#include "routes/routes.h"
#include <stdarg.h>

/* What becomes of the O_SYNC of an open. A file that is there is looked at before, so that it is
 * opened once: who closes another descriptor of it loses its locks (fcntl(2)), and whoever watches
 * its folder is told that somebody who could write has closed it (inotify(7)). So for one that is
 * to be made it is its folder that is looked at; REPLACE is what is left where that stays real. */
enum { AS_ASKED, OPEN_WITHOUT, MAKE_WITHOUT, REPLACE };

/* Whether what PROBE, an O_PATH descriptor, leads to has to be left to the kernel, or what is to be
 * there as PATH. */
static int probed_stays_real(long probe, const char *path)
{
	int stays;

	sl_forget((int)probe);
	stays = sl_stays_real((int)probe, path);
	sl_forget((int)probe);
	return stays;
}

#define PATH_MAX_ SL_ROOM_BYTES

/* Whether what is to be there as NAME has to be left to the kernel, where rules look at paths. Once
 * it is made that is too late: its mode may forbid to open it again, to bring the flag back. */
static int joined_stays_real(long folder, const char *name, char path[PATH_MAX_])
{
	long at = 0;

	if (!*name || !sl_path_of((int)folder, path, PATH_MAX_ - 2))
		return 1;
	while (path[at])
		at++;
	if (at == PATH_MAX_ - 3)
		return 1; /* it may go on */
	if (path[at - 1] != '/')
		path[at++] = '/';
	while (*name && at < PATH_MAX_ - 1)
		path[at++] = *name++;
	path[at] = 0;
	return *name || probed_stays_real(folder, path);
}

static NOINLINE int named_stays_real(long folder, const char *name)
{
	char *path = ROOM(PATH_MAX_);
	int stays = joined_stays_real(folder, name, path);

	sl_leave(path);
	return stays;
}

/* Of a file that is to be made as NAME in the folder FOLDER, which is opened with O_PATH, or the
 * error of that. */
static int how_to_make(long folder, const char *name)
{
	int stays;

	sl_tell_of_marks();
	if (is_error(folder))
		return REPLACE;
	stays = sl_rules_by_path() ? named_stays_real(folder, name)
				   : probed_stays_real(folder, NULL);
	raw1(NR_close, folder);
	return stays ? REPLACE : MAKE_WITHOUT;
}

/* Of a file that is there, by PROBE, which is opened with O_PATH. */
static int how_to_open(long probe)
{
	int how = sl_type((int)probe, "", 0x1000 /* EMPTY_PATH */) == S_IFREG_ &&
				  !probed_stays_real(probe, NULL)
			  ? OPEN_WITHOUT
			  : AS_ASKED;

	raw1(NR_close, probe);
	return how;
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
		is_real = how == REPLACE ? sl_replace((int)fd, flags)
					 : sl_mark((int)fd, flags, how == MAKE_WITHOUT);
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

/* What becomes of the O_SYNC of a file that is to be made as PATH, which the kernel has read. */
static int how_to_make_at(int dir, const char *path, uint64_t resolve)
{
	enum { LEAST = 512 };
	char *folder = ROOM(LEAST);
	unsigned n, end = 0, size = sl_room_size(folder, LEAST);
	long opened;

	for (n = 0; path[n] && n < size - 1; n++) {
		folder[n] = path[n];
		if (path[n] == '/')
			end = n + 1;
	}
	folder[end] = 0;
	opened = path[n] ? -ENAMETOOLONG_
			 : probe_at(dir, end ? folder : ".", O_DIRECTORY_, resolve);
	sl_leave(folder);
	return how_to_make(opened, path + end);
}

/* What becomes of the O_SYNC of an open by a name. */
static int how_by_name(int dir, const char *path, int flags, uint64_t resolve)
{
	long probe;

	if (!may_take(flags))
		return AS_ASKED;
	if (flags & O_TMPFILE_BIT_)
		return how_to_make(probe_at(dir, path, O_DIRECTORY_, resolve), "");
	probe = probe_at(dir, path, flags & O_NOFOLLOW_, resolve);
	if (!is_error(probe))
		return how_to_open(probe);
	return probe == -ENOENT_ && flags & O_CREAT_ ? how_to_make_at(dir, path, resolve)
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

#ifdef SL_IO
#define O_TRUNC_ 01000

#define CREAT(name, extra)                                                            \
	EXPORT int name(const char *path, unsigned mode)                              \
	{                                                                             \
		const int flags = O_CREAT_ | O_WRONLY_ | O_TRUNC_ | (extra);          \
                                                                                      \
		return (int)sl_set(TIMED_OPEN(AT_FDCWD_, path, flags, CALLER,         \
					      sl_open_at(AT_FDCWD_, path, flags, mode))); \
	}

CREAT(creat, 0)
CREAT(creat64, LARGE)
#endif

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

/* By a copy of ours where the flag is taken off, else SL_AT_SITE. FLAGS is set where they can be
 * read. */
static NOINLINE long open_by_copy(int dir, const char *path, const void *from, size_t size,
				  int *flags)
{
	struct how *how = ROOM(sizeof *how);
	int becomes = AS_ASKED;
	long r = SL_AT_SITE;

	how->from = from, how->size = size;
	if (has_copied(how)) {
		*flags = (int)how->h.flags;
		becomes = how_by(dir, path, how);
	}
	if (becomes != AS_ASKED)
		r = open_how(dir, path, how, becomes);
	sl_leave(how);
	return r;
}

long sl_open_how(int dir, const char *path, const void *from, size_t size)
{
	int flags;
	long fd = open_by_copy(dir, path, from, size, &flags);

	if (fd != SL_AT_SITE)
		return fd;
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
	int flags = O_PATH_; /* maybe */
	long fd = SL_AT_SITE;

	if (sl_maybe_later())
		fd = open_by_copy(dir, path, from, size, &flags);
	return fd == SL_AT_SITE ? leave_open(dir, path, flags) : fd;
}

long sl_gate_open_handle(int mount, void *handle, int flags)
{
	int how = how_handle(mount, handle, flags);

	if (how != AS_ASKED)
		return open_handle(mount, handle, flags, how);
	return leave_open(mount, NULL, flags);
}
#endif
