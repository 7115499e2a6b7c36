/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Calls that change what the session's bookkeeping stands on.
 *
 *   umount, umount2     the supervisor holds a descriptor on each file system that owes, which
 *                       would make the call fail with EBUSY: it settles, lets go, and then the
 *                       call is made
 *   chroot              where the library cannot be found behind it, its name is blanked in
 *                       LD_PRELOAD, so that ld.so does not complain in every program started there
 *   prctl, seccomp      a seccomp filter may kill at a call it does not expect: only real calls
 *                       then
 */
#include "shim.h"
#include "gate.h"
#include <stdarg.h>

#define MNT_EXPIRE_      4
#define UMOUNT_NOFOLLOW_ 8
#define PR_SET_SECCOMP_  22
#define PR_SET_TSC_      26
#define PR_TSC_SIGSEGV_  2
#define PR_SET_DISPATCH_ 59 /* PR_SET_SYSCALL_USER_DISPATCH, Linux 5.11 */
#define SECCOMP_TSYNC_        1u
#define SECCOMP_NEW_LISTENER_ 8u

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

/* Descriptors that were inherited are looked at up to this number. */
#define INHERITED 1024

/* How many calls of this process are under way that may restrict it. A forked child has none of its
 * parent's: what is this process's alone is wiped there. */
static uint32_t *tries(void) { return sl_mine ? &sl_mine->tries : &sl.tries; }

/* The victim's own filter, its own dispatch of system calls, or a trap on the time stamp counter
 * is about to stand. What lost its O_SYNC before this image was executed bears a mark that nobody
 * has looked for. */
static void step_back(void)
{
	int fd, looks = sl_marks.here == SL_MARKS_MAYBE || (sl_active() && sl_any_stripped());

	if (sl_marks.here == SL_MARKS_MAYBE)
		sl_marks.here = 0;
	for (fd = 0; looks && fd < INHERITED && !sl_marks.here; fd++)
		sl_marks.here = sl_mark_of(fd) != 0;
	if (sl_active())
		sl_slot_flag(SL_SLOT_RESTRICTED);
	__atomic_fetch_add(tries(), 1, __ATOMIC_SEQ_CST);
}

/* Which process this is of those that have had this memory one behind the other. */
static uint32_t life_of(struct mine *mine)
{
	uint32_t life = LOAD(mine->life);

	if (!life) {
		life = __atomic_add_fetch(&sl.lives, 1, __ATOMIC_SEQ_CST);
		if (!CAS(mine->life, 0, life))
			life = LOAD(mine->life);
	}
	return life;
}

/* One of these is over. Where none is under way any more, and none stands, it was asked for to see
 * what the kernel answers (libseccomp does so before main). */
static void step_forward(int failed)
{
	if (!failed)
		__atomic_fetch_or(&sl.outside, SL_RESTRICTS, __ATOMIC_SEQ_CST);
	__atomic_fetch_sub(tries(), 1, __ATOMIC_SEQ_CST);
	if (sl_active())
		sl_slot_unflag(SL_SLOT_RESTRICTED);
}

/* As the kernel takes them: an option is an int, a mode of the counter and an operation are
 * unsigned ones. What switches something off restricts nothing. */
int sl_restricts(long nr, const long a[6])
{
	if (nr == NR_seccomp)
		return (uint32_t)a[0] < 2;
	switch ((int)a[0]) {
	case PR_SET_SECCOMP_:
		return 1;
	case PR_SET_TSC_:
		return (uint32_t)a[1] == PR_TSC_SIGSEGV_;
	case PR_SET_DISPATCH_:
		return a[1] != 0;
	default:
		return 0;
	}
}

/* Where the filters of all threads cannot be made the same, the answer is a thread that has another
 * one (seccomp(2), SECCOMP_FILTER_FLAG_TSYNC); a listener's descriptor is none. */
static int has_failed(long nr, const long a[6], long r)
{
	uint32_t flags = (uint32_t)a[1];

	return is_error(r) || (nr == NR_seccomp && (uint32_t)a[0] == 1 && flags & SECCOMP_TSYNC_ &&
			       !(flags & SECCOMP_NEW_LISTENER_) && r > 0);
}

/* Makes a call that restricts its own process, as sl_restricts says. Behind one that has not failed
 * nothing is asked of the kernel any more. A handler that runs meanwhile may fork: the child comes
 * back here, and has begun none. */
long sl_restrict(long nr, const long a[6])
{
	uint32_t life = sl_mine ? life_of(sl_mine) : 0;
	long r;

	step_back();
#if defined SL_GATE && defined __x86_64__
	if (nr == NR_seccomp && (uint32_t)a[1] & SECCOMP_TSYNC_)
		sl_wait_for_stacks();
#endif
	r = raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (life && LOAD(sl_mine->life) != life) {
		if (!has_failed(nr, a, r))
			__atomic_fetch_or(&sl.outside, SL_RESTRICTS, __ATOMIC_SEQ_CST);
		return r;
	}
	step_forward(has_failed(nr, a, r));
	return r;
}

static long may_restrict(long nr, const long a[6])
{
	if (sl_restricts(nr, a))
		return sl_restrict(nr, a);
	return raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
}

EXPORT int prctl(int option, ...)
{
	unsigned long a, b, c, d;
	va_list more;

	va_start(more, option);
	a = va_arg(more, unsigned long);
	b = va_arg(more, unsigned long);
	c = va_arg(more, unsigned long);
	d = va_arg(more, unsigned long);
	va_end(more);
	return (int)sl_set(may_restrict(NR_prctl, (const long[6]){ option, (long)a, (long)b,
								   (long)c, (long)d }));
}

#ifdef __aarch64__
#define OPEN_CASES
#else
#define OPEN_CASES    \
	case NR_open: \
		return TIMED_OPEN(AT_FDCWD_, (const char *)a, (int)b, caller, \
				  sl_open_at(AT_FDCWD_, (const char *)a, (int)b, (unsigned)c));
#endif
#ifdef __i386__
#define FCNTL_CASES      \
	case NR_fcntl32: \
	case NR_fcntl:
#else
#define FCNTL_CASES case NR_fcntl:
#endif

long sl_other_syscall(long nr, long a, long b, long c, long d, long e, long f, uint64_t caller)
{
	switch (nr) {
		OPEN_CASES
	case NR_openat:
		return TIMED_OPEN((int)a, (const char *)b, (int)c, caller,
				  sl_open_at((int)a, (const char *)b, (int)c, (unsigned)d));
	case NR_openat2:
		return TIMED_OPEN((int)a, NULL, 0, caller,
				  sl_open_how((int)a, (const char *)b, (const void *)c, (size_t)d));
	case NR_open_by_handle_at:
		return TIMED_OPEN((int)a, NULL, (int)c, caller,
				  sl_open_handle((int)a, (void *)b, (int)c));
		FCNTL_CASES
		return sl_file_control(nr, (int)a, (int)b, c);
	case NR_write:
	case NR_writev:
	case NR_pwrite64:
	case NR_pwritev:
	case NR_sendfile:
#ifdef __i386__
	case NR_sendfile64:
#endif
		return sl_write_call((int)a, 0, nr, (const long[6]){ a, b, c, d, e, f }, caller);
	case NR_splice:
	case NR_copy_file_range:
		return sl_write_call((int)c, 0, nr, (const long[6]){ a, b, c, d, e, f }, caller);
	case NR_umount2:
		return sl_umount(nr, (const char *)a, b);
	case NR_io_submit:
		return sl_io_submit(a, b, (void **)c);
	case NR_io_uring_setup:
		if (sl_active())
			sl_slot_flag(SL_SLOT_URING);
		return raw(nr, a, b, c, d, e, f);
	case NR_prctl:
	case NR_seccomp:
		return may_restrict(nr, (const long[6]){ a, b, c, d, e, f });
	default:
#ifdef SL_IO
		return sl_io_syscall(nr, a, b, c, d, e, f, caller);
#else
		return raw(nr, a, b, c, d, e, f);
#endif
	}
}
