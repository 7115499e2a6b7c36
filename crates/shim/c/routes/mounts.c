/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Calls that change what the session's bookkeeping stands on.
 *
 *   umount, umount2     the supervisor holds a descriptor on each file system that owes, which
 *                       would make the call fail with EBUSY: it settles, lets go, and then the
 *                       call is made
 *   chroot              where the library cannot be found behind it, its name is blanked in
 *                       LD_PRELOAD, so that ld.so does not complain in every program started there
 */
#include "routes/routes.h"

#define MNT_EXPIRE_      4
#define UMOUNT_NOFOLLOW_ 8

/* The number of what is mounted at PATH, or 0, and its mount. */
static uint64_t number_of(const char *path, long flags, uint64_t *mount)
{
	struct sl_what w;
	int at = 0x800 /* NO_AUTOMOUNT */ | (flags & UMOUNT_NOFOLLOW_ ? 0x100 : 0);

	if (is_error(sl_what_at(AT_FDCWD_, path, at, STATX_MNT_ID_ | STATX_TYPE_, &w)))
		return 0;
	*mount = w.mount;
	return w.dev;
}

/* Has the supervisor settle what is mounted at PATH and let go of it: it may hold it already where
 * the page does not say so yet. Returns its mount, or 0. */
static uint64_t let_go(unsigned level, const char *path, long flags)
{
	struct level *l = &sl.level[level];
	uint64_t mount = 0, dev = number_of(path, flags, &mount);
	struct sl_slot *s;

	if (!dev)
		return 0;
	shard_of(level, &s);
	STORE(s->umount_dev, dev);
	STORE(s->umount_mount, mount);
	STORE(s->umount, SL_UMOUNT_ASKED);
	sl_ring(l->slots);
	while (LOAD(s->umount) == SL_UMOUNT_ASKED && sl_lease_runs(l->page))
		sl_futex_wait(&s->umount, SL_UMOUNT_ASKED, 250);
	return mount;
}

/* Whether what was asked about MOUNT stands no more: a slot has room for one such question, and
 * another thread, or process where a slot is shared, has put its own there. */
static int is_disturbed(unsigned level, uint64_t mount)
{
	struct sl_slot *s;

	shard_of(level, &s);
	return mount && sl_lease_runs(sl.level[level].page) &&
	       (LOAD(s->umount) != SL_UMOUNT_READY || LOAD(s->umount_mount) != mount);
}

static unsigned any_is_disturbed(unsigned n, uint64_t mount)
{
	unsigned i, any = 0;

	for (i = 0; i < n; i++)
		any |= (unsigned)is_disturbed(i, mount);
	return any;
}

static void over(unsigned level)
{
	struct sl_slot *s;

	shard_of(level, &s);
	if (LOAD(s->umount) == SL_UMOUNT_NONE)
		return;
	STORE(s->umount, SL_UMOUNT_OVER);
	sl_ring(sl.level[level].slots);
}

/* PATH is still mounted, and let go of. What lost its O_SYNC there may be written to by calls that
 * nobody sees (stdio), so nobody else would have it held again. */
static void hold_again(const char *path)
{
	long fd = raw4(NR_openat, AT_FDCWD_, path, O_PATH_ | O_CLOEXEC_, 0);

	if (is_error(fd))
		return;
	sl_wait_for_ledger((int)fd);
	raw1(NR_close, fd);
}

#define TIMES 64 /* that it is asked, at most */

/* The thread that unmounts, of those of this process: they have one slot, and take turns. A fork
 * inherits the number of one that is not its own. */
static uint32_t turn;

#define STALLS 40 /* of 250 ms, that a turn lasts at most but for what is being settled */

static int is_asking(unsigned n)
{
	struct sl_slot *s;
	unsigned i, any = 0;

	for (i = 0; i < n; i++) {
		shard_of(i, &s);
		any |= LOAD(s->umount) == SL_UMOUNT_ASKED && sl_lease_runs(sl.level[i].page);
	}
	return (int)any;
}

static int is_a_thread_of_ours(uint32_t tid)
{
	return raw3(NR_tgkill, raw0(NR_getpid), tid, 0) != -ESRCH_;
}

/* Waits until no other thread unmounts, and returns ours. It may be ours already: a signal's
 * handler unmounts, or jumped out of one. From one whose umount has no end it is taken. */
static uint32_t take_turn(unsigned n)
{
	uint32_t us = (uint32_t)raw0(NR_gettid), who, last = 0;
	int stalls = 0;

	while ((who = LOAD(turn)) != us) {
		if (who != last)
			stalls = 0;
		last = who;
		if ((!who || stalls >= STALLS || !is_a_thread_of_ours(who)) && CAS(turn, who, us))
			break;
		if (who && sl_futex_wait(&turn, who, 250) == -ETIMEDOUT_ && !is_asking(n))
			stalls++;
	}
	return us;
}

static void give_turn_back(uint32_t us)
{
	if (CAS(turn, us, 0))
		raw3(NR_futex, &turn, 1 /* FUTEX_WAKE */, 1);
}

/* The umount of what each of N sessions has let go of. */
static long umount_let_go(unsigned n, long nr, const char *path, long flags)
{
	unsigned i, asked, disturbed = 1;
	uint32_t us = take_turn(n);
	uint64_t mount;
	long r = -EBUSY_;

	for (asked = 1; asked <= TIMES && disturbed; asked++) {
		mount = 0;
		for (i = 0; i < n; i++)
			mount = let_go(i, path, flags);
		/* Another's answer says nothing of ours, and a lazy umount is refused nowhere. */
		if (asked < TIMES && any_is_disturbed(n, mount))
			continue;
		r = raw6(nr, path, flags, 0, 0, 0, sl_cookie());
		disturbed = r == -EBUSY_ && any_is_disturbed(n, mount);
	}
	for (i = 0; i < n; i++)
		over(i);
	give_turn_back(us);
	if (UNLIKELY(is_error(r) && sl_any_stripped()))
		hold_again(path);
	return r;
}

long sl_umount(long nr, const char *path, long flags)
{
	/* The first of these marks the mount, and whoever looks there takes the mark off again. */
	int first = flags & MNT_EXPIRE_;
	unsigned n = sl_active() ? sl.levels : 0;
	long r = -EBUSY_;

	if (!n || first)
		r = raw6(nr, path, flags, 0, 0, 0, sl_cookie());
	return n && r == -EBUSY_ ? umount_let_go(n, nr, path, flags) : r;
}

EXPORT int umount2(const char *path, int flags)
{
	return (int)sl_set(sl_umount(NR_umount2, path, flags));
}

EXPORT int umount(const char *path) { return (int)sl_set(sl_umount(NR_umount2, path, 0)); }

static char *preload_value(void)
{
	static const char key[] = "LD_PRELOAD=";
	char **e;
	int i;

	for (e = environ; &environ && e && *e; e++) {
		for (i = 0; key[i] && (*e)[i] == key[i]; i++)
			;
		if (!key[i])
			return *e + i;
	}
	return NULL;
}

static int ends_with(const char *from, const char *end, const char *name, long n)
{
	long i;

	if (end - from < n)
		return 0;
	for (i = 0; i < n && end[i - n] == name[i]; i++)
		;
	return i == n;
}

static int ours(const char *from, const char *end)
{
	static const char plain[] = "/libsynclater.so", io[] = "/libsynclater-io.so";

	return ends_with(from, end, plain, sizeof plain - 1) ||
	       ends_with(from, end, io, sizeof io - 1);
}

/* Overwrites our entries of LD_PRELOAD whose folder cannot be found with spaces, which separate. */
static void blank_unreachable(void)
{
	char *from = preload_value(), *end, *p;
	char folder[1024];
	long n, there;

	for (; from && *from; from = *end ? end + 1 : end) {
		for (end = from; *end && *end != ':' && *end != ' '; end++)
			;
		if (!ours(from, end))
			continue;
		for (n = 0; from + n < end && from[n] != '$' && n < (long)sizeof folder - 1; n++)
			folder[n] = from[n];
		folder[n] = 0;
		there = raw4(NR_openat, AT_FDCWD_, folder, O_PATH_ | O_CLOEXEC_, 0);
		if (!is_error(there))
			raw1(NR_close, there);
		for (p = from; there == -ENOENT_ && p < end; p++)
			*p = ' ';
	}
}

EXPORT int chroot(const char *path)
{
	long r = raw1(NR_chroot, path);

	if (!is_error(r))
		blank_unreachable();
	return (int)sl_set(r);
}
