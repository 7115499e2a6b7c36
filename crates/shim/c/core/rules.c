/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What the rules say about a process, once, and about a request, each time.
 */
#include "core/core.h"

static const struct sl_rule *rule_of(const struct sl_page *p, uint32_t i)
{
	return (const struct sl_rule *)((const char *)p + p->rules_at) + i;
}

static int exe_matches(const struct sl_page *p, const struct sl_rule *r, const char *exe)
{
	const char *glob = (const char *)p + r->exe, *base = exe, *c;
	int full = 0;

	if (!r->exe)
		return 1;
	for (c = glob; *c; c++)
		full |= *c == '/';
	for (c = exe; *c; c++)
		if (*c == '/')
			base = c + 1;
	return full ? sl_glob(glob, exe, 1) : sl_glob(glob, base, 0);
}

/* Rule I has decided something. */
static void note_match(const struct level *l, uint32_t i)
{
	uint32_t *word = &l->slots->matched[i / 32], bit = 1u << i % 32;

	if (!(LOAD_RELAXED(*word) & bit))
		__atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
}

/* Settles once what the rules say about this executable: EXE, or NULL where it is not known. Then a
 * rule about one may or may not match: from there on nothing is certain, so nothing matches. */
void sl_apply_exe_rules(struct level *l, const char *exe)
{
	const struct sl_page *p = l->page;
	uint32_t i;
	int ask = 0;

	l->fixed = CLASS_NONE;
	for (i = 0; i < p->rule_count && i < SL_RULE_MAX; i++) {
		const struct sl_rule *r = rule_of(p, i);

		if (r->exe && !exe)
			break;
		if (!exe_matches(p, r, exe))
			continue;
		if (!r->users && !r->path && !ask) {
			note_match(l, i);
			l->fixed = r->class_;
			return;
		}
		ask = 1;
		l->rule_bits[i / 32] |= 1u << i % 32;
	}
	if (ask)
		l->fixed = CLASS_ASK;
}

/* Whether a rule of any session looks at paths. */
int sl_rules_by_path(void)
{
	const struct sl_page *p;
	uint32_t needs = 0;
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		p = sl.level[i].page;
		needs |= p->rule_count ? p->rule_needs : 0;
	}
	return !!(needs & SL_NEEDS_PATH);
}

/* The path of FD, in BUF; NULL where that cannot be told. */
const char *sl_path_of(int fd, char *buf, long size)
{
	char name[12];
	long fds, r;

	fds = fd < 0 ? -EBADF_ : sl_open_fds();
	if (is_error(fds))
		return NULL;
	sl_digits(fd, name);
	r = raw4(NR_readlinkat, fds, name, buf, size - 1);
	raw1(NR_close, fds);
	if (r <= 0)
		return NULL;
	buf[r] = 0;
	return buf;
}

static int user_matches(const struct sl_page *p, const struct sl_rule *r, uint32_t uid)
{
	const uint32_t *users = (const uint32_t *)(const void *)((const char *)p + r->users);
	uint32_t i;

	for (i = 0; i < r->user_count; i++)
		if (users[i] == uid)
			return 1;
	return 0;
}

/* The class of the first rule that matches a request about what lies at PATH, or CLASS_NONE. A path
 * that cannot be told (NULL) may or may not match: from there on nothing is certain, so nothing
 * matches. */
static uint32_t match_rules(const struct level *l, const char *path)
{
	const struct sl_page *p = l->page;
	uint32_t uid = p->rule_needs & SL_NEEDS_USER ? (uint32_t)raw0(NR_geteuid) : 0, i;

	for (i = 0; i < p->rule_count && i < SL_RULE_MAX; i++) {
		const struct sl_rule *r = rule_of(p, i);

		if (!(l->rule_bits[i / 32] >> i % 32 & 1))
			continue;
		if (r->users && !user_matches(p, r, uid))
			continue;
		if (r->path && !path)
			return CLASS_NONE;
		if (!r->path || sl_glob((const char *)p + r->path, path, 1)) {
			note_match(l, i);
			return r->class_;
		}
	}
	return CLASS_NONE;
}

static NOINLINE uint32_t match_by_path(const struct level *l, int fd)
{
	char *path = ROOM(SL_ROOM_BYTES);
	uint32_t matched = match_rules(l, sl_path_of(fd, path, SL_ROOM_BYTES));

	sl_leave(path);
	return matched;
}

/* The class of a request about FD, whose path is PATH (NULL: to be found where a rule needs it).
 * LATER, or why it is real. */
int sl_class_of(const struct level *l, int fd, const char *path, uint8_t *class_)
{
	uint32_t c = l->page->rule_count ? l->fixed : 0;

	if (UNLIKELY(c == CLASS_ASK))
		c = path || !(l->page->rule_needs & SL_NEEDS_PATH) ? match_rules(l, path)
								   : match_by_path(l, fd);
	if (c >= SL_CLASS_MAX)
		return SL_KEPT_RULE;
	*class_ = (uint8_t)c;
	if (LOAD(l->page->now_mask) >> c & 1)
		return l->page->rule_count ? SL_KEPT_RULE : SL_KEPT_NOW;
	return LATER;
}
