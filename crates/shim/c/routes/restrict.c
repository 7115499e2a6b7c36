/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Calls by which a process restricts itself: prctl, seccomp.
 *
 * Promise: behind such a call nothing is asked of the kernel that the program did not ask for,
 * since a filter may kill at it: every request is real from then on. One that failed restricts
 * nothing (libseccomp makes such calls before main, to see what the kernel answers).
 */
#include "routes/routes.h"
#include <stdarg.h>

#define PR_SET_SECCOMP_  22
#define PR_SET_TSC_      26
#define PR_TSC_SIGSEGV_  2
#define PR_SET_DISPATCH_ 59 /* PR_SET_SYSCALL_USER_DISPATCH, Linux 5.11 */
#define SECCOMP_TSYNC_        1u
#define SECCOMP_NEW_LISTENER_ 8u

/* Descriptors that were inherited are looked at up to this number. */
#define INHERITED 1024

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

/* Whether no other thread is there to fork. The libc knows its own threads alone: clone(2) makes
 * others. So it is asked first, and then /proc, of which a folder has two links more than folders
 * in it. */
static int is_single_threaded(void)
{
#ifdef SL_GATE
	return 0;
#else
	struct statx_answer *x;
	int is_so = 0;

	if (!&__libc_single_threaded || !__libc_single_threaded)
		return 0;
	x = ROOM(sizeof *x);
	if (!is_error(raw5(NR_statx, AT_FDCWD_, "/proc/self/task", 0, STATX_NLINK_, x)))
		is_so = x->links == 3;
	sl_leave(x);
	return is_so;
#endif
}

/* Whether a call is to put a filter on all threads, those that are being forked among them. */
static int is_of_all(long nr, const long a[6])
{
	/* At NULL the kernel reads no filter. */
	return nr == NR_seccomp && (uint32_t)a[0] == 1 && (uint32_t)a[1] & SECCOMP_TSYNC_ && a[2] &&
	       !is_single_threaded();
}

/* What lost its O_SYNC before this image was executed bears a mark that nobody has looked for. */
static void look_for_marks(void)
{
	int fd, looks = sl_marks.here == SL_MARKS_MAYBE || (sl_active() && sl_any_stripped());

	if (sl_marks.here == SL_MARKS_MAYBE)
		sl_marks.here = 0;
	for (fd = 0; looks && fd < INHERITED && !sl_marks.here; fd++)
		sl_marks.here = sl_mark_of(fd) != 0;
}

/* A free place of `trying`, which is ours now; TRYING_MAX: there is none. */
static uint32_t take_place(void)
{
	uint32_t there, place;

	for (;;) {
		there = LOAD(sl.tries);
		place = (uint32_t)__builtin_ctz(~there | ONE_UNPLACED);
		if (place >= TRYING_MAX || CAS(sl.tries, there, there | 1u << place))
			return place;
	}
}

/* One more call is under way that has no place. Once there are as many as can be counted, nothing
 * is counted off any more, and all is real for good. */
static void count_unplaced(void)
{
	uint32_t there;

	do
		there = LOAD(sl.tries);
	while (there < UNPLACED_MAX && !CAS(sl.tries, there, there + ONE_UNPLACED));
}

/* One of them has come back. */
static void count_off_unplaced(void)
{
	uint32_t there;

	do
		there = LOAD(sl.tries);
	while (there < UNPLACED_MAX && !CAS(sl.tries, there, there - ONE_UNPLACED));
}

/* Notes whose call is under way. A handler may come between any two steps, and fork: its child goes
 * on here, behind sl_begin_life, which goes by `trying` alone. NULL: as that of nobody who is
 * known. */
static uint64_t *note_trying(int is_of_all)
{
	uint64_t self = thread_number() & ~(uint64_t)SL_OF_ALL;
	uint32_t place = self ? take_place() : TRYING_MAX;

	if (place >= TRYING_MAX) {
		count_unplaced();
		return NULL;
	}
	STORE(sl.trying[place], self | (is_of_all ? SL_OF_ALL : 0));
	__atomic_fetch_or(&sl.tries, 1u << place, __ATOMIC_SEQ_CST);
	return &sl.trying[place];
}

/* The victim's own filter, its own dispatch of system calls, or a trap on the time stamp counter is
 * about to stand. Returns what sl_end_restricting takes. */
uint64_t *sl_begin_restricting(long nr, const long a[6])
{
	int of_all = sl.kins && is_of_all(nr, a);
	uint64_t *trying;

	look_for_marks();
	if (sl_active())
		sl_slot_flag(SL_SLOT_RESTRICTED);
	/* In this order: who is forked meanwhile knows of the call, or less of them than its kin. */
	if (of_all)
		ADD(*sl.kins, 1);
	trying = note_trying(of_all);
	if (of_all)
		ADD(sl.tsyncs, 1);
	return trying;
}

/* Where the filters of all threads cannot be made the same, the answer is a thread that has another
 * one (seccomp(2), SECCOMP_FILTER_FLAG_TSYNC); a listener's descriptor is none. */
static int has_failed(long nr, const long a[6], long r)
{
	uint32_t flags = (uint32_t)a[1];

	return is_error(r) || (nr == NR_seccomp && (uint32_t)a[0] == 1 && flags & SECCOMP_TSYNC_ &&
			       !(flags & SECCOMP_NEW_LISTENER_) && r > 0);
}

/* Such a call has come back with R. Behind one that has not failed nothing is asked of the kernel
 * any more. Where none is under way, and none stands, it was asked for to see what the kernel
 * answers (libseccomp does so before main). A handler that ran meanwhile may have forked: its child
 * comes back here, too. */
void sl_end_restricting(uint64_t *trying, long nr, const long a[6], long r)
{
	if (!has_failed(nr, a, r))
		__atomic_fetch_or(&sl.outside, SL_RESTRICTS, __ATOMIC_SEQ_CST);
	if (trying) {
		STORE(*trying, 0);
		__atomic_fetch_and(&sl.tries, ~(1u << (trying - sl.trying)), __ATOMIC_SEQ_CST);
	} else {
		count_off_unplaced();
	}
	if (sl_active())
		sl_slot_unflag(SL_SLOT_RESTRICTED);
}

/* Makes a call by which a process may restrict itself. */
long sl_may_restrict(long nr, const long a[6])
{
	int may = sl_restricts(nr, a);
	uint64_t *trying = may ? sl_begin_restricting(nr, a) : NULL;
	long r = raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);

	if (may)
		sl_end_restricting(trying, nr, a, r);
	return r;
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
	return (int)sl_set(sl_may_restrict(NR_prctl, (const long[6]){ option, (long)a, (long)b,
								   (long)c, (long)d }));
}
