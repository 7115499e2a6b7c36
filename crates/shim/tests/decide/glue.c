/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * One decision of the library's core, or of the gate's (SL_GATE), for main.c: its headers forbid
 * stdio.
 */
#include "core/core.h"

/* The hook of a recording: there is none. */
long sl_sync_noted(long nr, int fd, unsigned kind, uint64_t caller)
{
	(void)nr, (void)fd, (void)kind, (void)caller;
	return 0;
}

#ifdef SL_GATE
void sl_init(void) {}
#endif

int join_page(const void *page, void *slots, const char *exe);
void decide(int fd, int answer[4]);

/* Is in the session with this page and these slots, as EXE. */
int join_page(const void *page, void *slots, const char *exe)
{
	struct level *l = &sl.level[0];

	sl_init();
	l->page = page;
	l->slots = slots;
	if (!sl_make_mine())
		return 0;
	sl_meet_kin((uint32_t)raw0(NR_getpid));
	if (l->page->rule_count)
		sl_apply_exe_rules(l, exe);
	sl.outside = 0;
	sl.levels = 1;
	sl.ready = 2;
	return 1;
}

/* What becomes of a request on FD, or on everything (-1): why it is kept, or -1; an error; the file
 * system and the class that owe it. */
void decide(int fd, int answer[4])
{
	struct verdict v = { .fs = { SL_NO_FS } };

	sl_decide(&v, fd);
	answer[0] = v.kept;
	answer[1] = v.error;
	answer[2] = v.fs[0];
	answer[3] = v.class_[0];
}
