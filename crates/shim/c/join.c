/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Joining the sessions that SYNCLATER_PAGE names, before anything is decided.
 *
 * Promise: a page or slots of another version, or that cannot be mapped, is as if there were none:
 * then every request is made for real. Never joined: a process that has a seccomp filter which the
 * supervisor has not, since that may kill at any call that we make to find out.
 */
#include "core/core.h"

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static const char *env(const char *name)
{
	char **e;

	for (e = environ; &environ && e && *e; e++) {
		const char *n = name, *v = *e;

		while (*n && *n == *v)
			n++, v++;
		if (!*n && *v == '=')
			return v + 1;
	}
	return NULL;
}

/* The number behind KEY in TEXT, where that and the end of its line are there; else NULL. */
static const char *number_behind(const char *key, const char *text)
{
	long k;

	for (; *text; text++) {
		for (k = 0; key[k] && text[k] == key[k]; k++)
			;
		if (key[k])
			continue;
		for (text += k, k = 0; text[k] && text[k] != '\n'; k++)
			;
		return text[k] ? text : NULL;
	}
	return NULL;
}

/* How many seccomp filters this process has; more than the supervisor had means that a victim put
 * one in, which may kill at a system call that it does not expect. Unreadable: as if there were.
 * The line stands behind that of the groups, of which a user may have tens of thousands. */
static uint32_t seccomp_filters(void)
{
	enum { LINE = 64 };
	char buf[4096];
	const char *number = NULL;
	long fd = raw4(NR_openat, AT_FDCWD_, "/proc/self/status", O_CLOEXEC_, 0), n, i, len = 0;

	if (is_error(fd))
		return UINT32_MAX;
	while (!number && (n = raw3(NR_read, fd, buf + len, sizeof buf - 1 - len)) > 0) {
		buf[len += n] = 0;
		number = number_behind("\nSeccomp_filters:\t", buf);
		if (number || len <= LINE)
			continue;
		/* What may be the beginning of the line stays. */
		for (i = 0; i < LINE; i++)
			buf[i] = buf[len - LINE + i];
		len = LINE;
	}
	raw1(NR_close, fd);
	if (number)
		return sl_number_in(number);
	return len && !n ? 0 : UINT32_MAX; /* a kernel before 5.9, or without seccomp */
}

static void *map(long fd, uint32_t size, int prot)
{
	long p = raw6(NR_mmap, 0, size, prot, MAP_SHARED_, fd, 0);

	raw1(NR_close, fd);
	return is_error(p) ? NULL : (void *)p;
}

/* Whether OWNER may relax what this process asks for: root, or its own user. What outlives a
 * session goes on naming its page, and in /tmp that name may have become another user's. */
static int may_relax(uint32_t owner) { return !owner || owner == (uint32_t)raw0(NR_geteuid); }

/* How many filters a process of the session had at its start, by the name of the folder that the
 * page at PATH lay in: what outlives the session finds nothing else. */
static uint32_t filters_by(const char *path)
{
	const char *number = "", *behind = "";

	for (; *path; path++) {
		if (*path == '/')
			number = behind;
		if (*path == '/' || *path == '.')
			behind = path + 1;
	}
	return sl_number_in(number);
}

/* A filter of its own may kill this process at a call that nobody expects of it. */
static int has_filter;

/* Maps the page at PATH read-only after its head was found good, and says whose it is. Up to the
 * look for a filter it uses only calls that ld.so has just used itself, so that a filter that let
 * the program start lets them pass. */
static const struct sl_page *map_page(const char *path, uint32_t *owner)
{
	enum { FILTERS = offsetof(struct sl_page, filters) };
	struct {
		uint64_t magic;
		uint32_t version, size;
		char between[FILTERS - 16];
		uint32_t filters;
	} head;
	long fd = raw4(NR_openat, AT_FDCWD_, path, O_CLOEXEC_ | O_NOFOLLOW_, 0);
	int is_good = !is_error(fd) && raw3(NR_read, fd, &head, sizeof head) >= FILTERS + 4 &&
		      head.magic == SL_PAGE_MAGIC && head.version == SL_VERSION &&
		      head.size >= sizeof(struct sl_page) && head.size <= 64u << 20;

	sl.filters = seccomp_filters();
	has_filter = sl.filters > (is_good ? head.filters : filters_by(path));
	if (is_good && !has_filter) {
		*owner = sl_owner_of((int)fd);
		if (may_relax(*owner))
			return map(fd, head.size, PROT_READ_);
	}
	if (!is_error(fd))
		raw1(NR_close, fd);
	return NULL;
}

/* Puts NAME in the place of the last component of PATH. */
static void set_last(char *path, long last, const char *name)
{
	do
		path[last++] = *name;
	while (*name++);
}

/* Maps the slots beside the page of L at PATH. */
static struct sl_slots *map_slots(char *path, long last, const struct level *l)
{
	const struct sl_page *page = l->page;
	struct sl_slots *s;
	long fd;

	set_last(path, last, "slots");
	if (page->slots_size < sizeof(struct sl_slots))
		return NULL;
	fd = raw4(NR_openat, AT_FDCWD_, path,
		  O_RDWR_ | O_CLOEXEC_ | O_NOFOLLOW_ | O_LARGEFILE_, 0);
	if (is_error(fd))
		fd = sl_ask_fd(page, l->owner, 0);
	if (is_error(fd))
		return NULL;
	s = map(fd, page->slots_size, PROT_READ_ | PROT_WRITE_);
	return s && s->magic == SL_SLOTS_MAGIC && s->version == SL_VERSION ? s : NULL;
}

static void apply_exe_rules(struct level *l)
{
	char exe[4096];
	long n = -1, link = -1;

	if (l->page->rule_needs & SL_NEEDS_EXE)
		link = sl_open_proc("self/exe", O_PATH_ | O_NOFOLLOW_);
	if (link >= 0) {
		n = raw4(NR_readlinkat, link, "", exe, sizeof exe - 1);
		raw1(NR_close, link);
	}
	if (n > 0)
		exe[n] = 0;
	sl_apply_exe_rules(l, n > 0 ? exe : NULL);
}

/* Joins the session whose page is at PATH (LEN bytes). Returns 0 where it cannot be joined. */
static int join(const char *at, long len)
{
	struct level *l = &sl.level[sl.levels];
	char path[1024];
	long i, last = 0;

	if (len <= 0 || len > (long)sizeof path - 16) {
		sl.filters = seccomp_filters();
		has_filter = sl.filters > 0;
		return 0;
	}
	for (i = 0; i < len; i++) {
		path[i] = at[i];
		if (at[i] == '/')
			last = i + 1;
	}
	path[len] = 0;
	l->page = map_page(path, &l->owner);
	if (!l->page)
		return 0;
	l->slots = map_slots(path, last, l);
	if (!l->slots)
		return 0;
	set_last(path, last, "rings");
	for (i = 0; path[i] && i < (long)sizeof l->rings_path - 1; i++)
		l->rings_path[i] = path[i];
	l->rings_path[path[i] ? 0 : i] = 0;
	if (l->page->rule_count)
		apply_exe_rules(l);
	sl.levels++;
	return 1;
}

/* Joins all of LIST. Returns 0 where one of them cannot be joined. */
static int join_all(const char *list)
{
	const char *end;

	for (;; list = end + 1) {
		for (end = list; *end && *end != ':'; end++)
			;
		if (sl.levels == LEVELS_MAX || !join(list, end - list))
			return 0;
		if (!*end)
			return sl_make_mine();
	}
}

/* All is real from now on. What was inherited without its O_SYNC is synced all the same: nobody
 * else knows of it. */
static void stay_outside(void)
{
	sl.levels = 0;
	sl.outside = 1;
	if (!has_filter)
		sl_marks.here = SL_MARKS_MAYBE;
}

/* Has the calls that are to restrict all threads counted where there is no session, too: in memory
 * that is shared with whoever is forked. */
static void share_kin(void)
{
	long p = raw6(NR_mmap, 0, 4096, PROT_READ_ | PROT_WRITE_, MAP_SHARED_ANON_, -1, 0);

	if (!is_error(p) && sl_make_mine())
		sl.kins = (uint32_t *)p;
}

/* Runs as constructor, and at the first call where another constructor synced before ours. */
__attribute__((constructor)) void sl_init(void)
{
	const char *page, *until;

	if (!CAS(sl.ready, 0, 1))
		return;
	page = env("SYNCLATER_PAGE");
	until = env("SYNCLATER_UNTIL");
	sl.alone = !(page && *page) && until && same(until, "never");
	if (sl.alone) {
		sl.filters = seccomp_filters();
		if (!sl.filters)
			share_kin();
	}
	if (!sl.alone && !join_all(page ? page : ""))
		stay_outside();
	else if (!sl.alone) { /* no call before that: a filter may kill at it */
		sl.began_as = (uint32_t)raw0(NR_getpid);
		sl_meet_kin(sl.began_as);
	}
	STORE(sl.ready, 2);
}
