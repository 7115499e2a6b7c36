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

long sl_may_restrict(long nr, const long a[6])
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
	return (int)sl_set(sl_may_restrict(NR_prctl, (const long[6]){ option, (long)a, (long)b,
								   (long)c, (long)d }));
}
