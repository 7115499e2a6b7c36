/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Finding the session, and deciding for one request: now or later?
 *
 * Promise: a request is answered later only while, in every session that this process is in, the
 * supervisor's lease runs, the dial and the rules allow it and the file system is in the ledger.
 *
 * The order that makes this safe against a settle that runs at the same time: a request is first
 * counted by an atomic add (a full barrier behind whatever the program wrote), and only then are
 * `relax`, the lease and the state of the file system read. Whoever ends a relaxation first stores
 * relax = 0 and then settles. So a request that still saw relax = 1 is covered by that settle.
 */
#include "shim.h"

struct state sl;

/* Our slots, one a level. The kernel wipes this page in a forked child (MADV_WIPEONFORK), which
 * then claims slots of its own; a vfork child shares it, and counts for its parent. */
static struct sl_slot **mine;

int sl_same(const char *a, const char *b)
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

/* Reads a whole small file, NUL-terminated. Returns its length or -errno. */
static long read_file(const char *path, char *buf, long size)
{
	long fd = raw4(NR_openat, AT_FDCWD_, path, O_CLOEXEC_, 0), n, at = 0;

	if (is_error(fd))
		return fd;
	while (at < size - 1 && (n = raw3(NR_read, fd, buf + at, size - 1 - at)) > 0)
		at += n;
	raw1(NR_close, fd);
	buf[at] = 0;
	return at;
}

/* How many seccomp filters this process has; more than the supervisor had means that a victim put
 * one in, which may kill at a system call that it does not expect. Unreadable: as if there were. */
static uint32_t seccomp_filters(void)
{
	static const char key[] = "\nSeccomp_filters:\t";
	char buf[4096];
	uint32_t n = 0;
	long i, k;

	if (read_file("/proc/self/status", buf, sizeof buf) <= 0)
		return UINT32_MAX;
	for (i = 0; buf[i]; i++) {
		for (k = 0; key[k] && buf[i + k] == key[k]; k++)
			;
		if (key[k])
			continue;
		for (i += k; buf[i] >= '0' && buf[i] <= '9'; i++)
			n = n * 10 + (uint32_t)(buf[i] - '0');
		return n;
	}
	return 0; /* a kernel before 5.9, or without seccomp */
}

#define PROT_READ_        1
#define PROT_WRITE_       2
#define MAP_SHARED_       1
#define MAP_PRIVATE_ANON_ 0x22
#if defined(__i386__)
#define NR_MAP NR_mmap /* mmap2: offset in pages; it is 0 here */
#else
#define NR_MAP NR_mmap
#endif

static void *map(long fd, uint32_t size, int prot)
{
	long p = raw6(NR_MAP, 0, size, prot, MAP_SHARED_, fd, 0);

	raw1(NR_close, fd);
	return is_error(p) ? NULL : (void *)p;
}

/* Maps the page at PATH read-only after its head was found good. Uses only calls that ld.so has
 * just used itself, so that a seccomp filter that let the program start lets them pass. */
static const struct sl_page *map_page(const char *path)
{
	struct {
		uint64_t magic;
		uint32_t version, size;
	} head;
	long fd = raw4(NR_openat, AT_FDCWD_, path, O_CLOEXEC_ | O_NOFOLLOW_, 0);

	if (is_error(fd))
		return NULL;
	if (raw3(NR_read, fd, &head, sizeof head) != sizeof head || head.magic != SL_PAGE_MAGIC ||
	    head.version != SL_VERSION || head.size < sizeof(struct sl_page) ||
	    head.size > 64u << 20) {
		raw1(NR_close, fd);
		return NULL;
	}
	return map(fd, head.size, PROT_READ_);
}

/* The control data that carries one descriptor, as recvmsg(2) lays it out. */
struct fd_message {
	size_t len;
	int level, type, fd, pad;
};
struct plain_iovec {
	void *base;
	size_t len;
};
struct plain_msghdr {
	void *name;
	uint32_t name_len;
	struct plain_iovec *iov;
	size_t iov_len;
	void *control;
	size_t control_len;
	int flags;
};

/* Receives one descriptor. Returns it, or -errno. */
static long receive_fd(long socket)
{
	struct fd_message c = { 0, 0, 0, -1, 0 };
	char byte;
	struct plain_iovec iov = { &byte, 1 };
	struct plain_msghdr m = { NULL, 0, &iov, 1, &c, sizeof c, 0 };
	long r = raw3(NR_recvmsg, socket, &m, 0x40000000 /* MSG_CMSG_CLOEXEC */);

	if (r == 1 && c.level == 1 && c.type == 1 /* SOL_SOCKET, SCM_RIGHTS */)
		return c.fd;
	return is_error(r) ? r : -EACCES_;
}

/* Asks the supervisor for the slots: a process that changed its user before it was executed may not
 * open them. It answers those who descend from the session's command, and nobody else. */
static long ask_slots(const struct sl_page *page)
{
	struct {
		uint16_t family;
		char name[33];
	} __attribute__((packed)) a = { 1, { 0 } };
	long patience[2] = { 0, 200000 }, s, fd;
	unsigned i;

	for (i = 0; i < 32; i++)
		a.name[i + 1] = (char)page->socket[i];
	s = raw3(NR_socket, 1, 1 | 02000000, 0); /* AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC */
	if (is_error(s))
		return s;
	raw5(NR_setsockopt, s, 1, 20, patience, sizeof patience); /* SO_RCVTIMEO */
	fd = raw3(NR_connect, s, &a, sizeof a);
	if (!is_error(fd))
		fd = receive_fd(s);
	raw1(NR_close, s);
	return fd;
}

/* Maps the slots beside the page at PATH: its last component becomes "slots". */
static struct sl_slots *map_slots(char *path, long last, const struct sl_page *page)
{
	static const char name[] = "slots";
	struct sl_slots *s;
	long fd;
	unsigned i;

	for (i = 0; i < sizeof name; i++)
		path[last + i] = name[i];
	if (page->slots_size < sizeof(struct sl_slots))
		return NULL;
	fd = raw4(NR_openat, AT_FDCWD_, path, O_RDWR_ | O_CLOEXEC_ | O_NOFOLLOW_, 0);
	if (is_error(fd))
		fd = ask_slots(page);
	if (is_error(fd))
		return NULL;
	s = map(fd, page->slots_size, PROT_READ_ | PROT_WRITE_);
	return s && s->magic == SL_SLOTS_MAGIC && s->version == SL_VERSION ? s : NULL;
}

/* The inode number in a link like "pid:[4026531836]", or 0. */
static uint64_t namespace_number(const char *link)
{
	char buf[64];
	long n = raw4(NR_readlinkat, AT_FDCWD_, link, buf, sizeof buf), i;
	uint64_t v = 0;

	for (i = 0; i < n && buf[i] != '['; i++)
		;
	for (i++; i < n && buf[i] >= '0' && buf[i] <= '9'; i++)
		v = v * 10 + (uint64_t)(buf[i] - '0');
	return v;
}

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
	if (!exe)
		return 0;
	for (c = glob; *c; c++)
		full |= *c == '/';
	for (c = exe; *c; c++)
		if (*c == '/')
			base = c + 1;
	return full ? sl_glob(glob, exe, 1) : sl_glob(glob, base, 0);
}

/* Settles once what the rules say about this executable. */
static void apply_exe_rules(struct level *l)
{
	const struct sl_page *p = l->page;
	char exe[4096];
	long n = -1;
	uint32_t i;
	int ask = 0;

	if (p->rule_needs & SL_NEEDS_EXE)
		n = raw4(NR_readlinkat, AT_FDCWD_, "/proc/self/exe", exe, sizeof exe - 1);
	if (n > 0)
		exe[n] = 0;
	l->fixed = CLASS_NONE;
	for (i = 0; i < p->rule_count && i < SL_RULE_MAX; i++) {
		const struct sl_rule *r = rule_of(p, i);

		if (!exe_matches(p, r, n > 0 ? exe : NULL))
			continue;
		if (!r->users && !r->path && !ask) {
			l->fixed = r->class_;
			return;
		}
		ask = 1;
		l->rule_bits[i / 32] |= 1u << i % 32;
	}
	if (ask)
		l->fixed = CLASS_ASK;
}

/* Joins the session whose page is at PATH (LEN bytes). Returns 0 where it cannot be joined. */
static int join(const char *at, long len)
{
	struct level *l = &sl.level[sl.levels];
	char path[1024];
	long i, last = 0;

	if (len <= 0 || len > (long)sizeof path - 16)
		return 0;
	for (i = 0; i < len; i++) {
		path[i] = at[i];
		if (at[i] == '/')
			last = i + 1;
	}
	path[len] = 0;
	l->page = map_page(path);
	if (!l->page)
		return 0;
	if (seccomp_filters() > l->page->filters) {
		sl.filtered = 1;
		return 0;
	}
	l->slots = map_slots(path, last, l->page);
	if (!l->slots)
		return 0;
	if (l->page->rule_count)
		apply_exe_rules(l);
	/* Now: behind a chroot there may be no /proc to ask. */
	if (!sl.levels)
		sl.other_ns = namespace_number("/proc/self/ns/mnt") == l->page->mount_ns ? 1 : 2;
	sl.levels++;
	return 1;
}

static void join_all(const char *list)
{
	const char *end;
	long p;

	for (;; list = end + 1) {
		for (end = list; *end && *end != ':'; end++)
			;
		if (sl.levels == LEVELS_MAX || !join(list, end - list)) {
			sl.levels = 0;
			return;
		}
		if (!*end)
			break;
	}
	p = raw6(NR_MAP, 0, 4096, PROT_READ_ | PROT_WRITE_, MAP_PRIVATE_ANON_, -1, 0);
	if (is_error(p) ||
	    is_error(raw3(NR_madvise, p, 4096, 18 /* MADV_WIPEONFORK, Linux 4.14 */)))
		sl.levels = 0;
	else
		mine = (struct sl_slot **)p;
}

/* Runs as constructor, and at the first call where another constructor synced before ours. */
__attribute__((constructor)) void sl_init(void)
{
	const char *page, *until;

	if (!CAS(sl.ready, 0, 1))
		return;
	page = env("SYNCLATER_PAGE");
	until = env("SYNCLATER_UNTIL");
	if (page && *page)
		join_all(page);
	else
		sl.alone = until && sl_same(until, "never");
	STORE(sl.ready, 2);
}

/* Whether anything is to be decided here: in a session, or alone at `never`. Not once the victim
 * has a seccomp filter of its own, which may kill at any call that we make to find out. */
int sl_active(void)
{
	if (UNLIKELY(LOAD_RELAXED(sl.ready) != 2))
		sl_init();
	return sl.ready == 2 && LIKELY(!sl.filtered) && (sl.levels || sl.alone);
}

void sl_ring(struct sl_slots *s)
{
	ADD(s->doorbell, 1);
	raw3(NR_futex, &s->doorbell, 1 /* FUTEX_WAKE */, 1);
}

long sl_futex_wait(uint32_t *word, uint32_t value, long ms)
{
	long t[2] = { ms / 1000, ms % 1000 * 1000000 };

	return raw4(NR_futex, word, 0 /* FUTEX_WAIT */, value, t);
}

/* Claims a slot, the one of an earlier image of this process if there is one. */
static struct sl_slot *claim(struct sl_slots *s)
{
	uint32_t pid = (uint32_t)raw0(NR_getpid), k;
	uint64_t ns = namespace_number("/proc/self/ns/pid");

	for (k = 0; k < SL_SLOT_MAX - 1; k++) {
		struct sl_slot *t = &s->slot[1 + (pid + k) % (SL_SLOT_MAX - 1)];

		if (LOAD(t->pid) == pid && LOAD_RELAXED(t->pid_ns) == ns)
			return t;
		if (LOAD(t->pid) == 0 && CAS(t->pid, 0, pid)) {
			t->pid_ns = ns;
			t->uid = (uint32_t)raw0(NR_geteuid);
			return t;
		}
	}
	sl_ring(s); /* the supervisor frees the slots of the dead */
	return &s->slot[0];
}

struct sl_shard *sl_shard_of(unsigned i, struct sl_slot **slot)
{
	uint32_t hash = (uint32_t)(thread_number() >> 6) * 0x9e3779b1u >> 29;
	struct sl_slot *s = __atomic_load_n(&mine[i], __ATOMIC_RELAXED);

	if (UNLIKELY(!s)) {
		s = claim(sl.level[i].slots);
		__atomic_store_n(&mine[i], s, __ATOMIC_RELAXED);
	}
	if (slot)
		*slot = s;
	return &s->shard[hash % SL_SHARDS];
}

void sl_count_request(int hint)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		struct sl_shard *h = sl_shard_of(i, NULL);

		if (hint)
			ADD(h->hints, 1);
		else
			ADD(h->requests, 1);
	}
}

void sl_count_failed(int hint)
{
	unsigned i;

	for (i = 0; !hint && i < sl.levels; i++)
		ADD(sl_shard_of(i, NULL)->failed, 1);
}

/* Counts a request that is made for real by somebody else: the kernel's AIO, the libc's thread. */
void sl_count_kept(int why)
{
	struct sl_slot *s;
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		ADD(sl_shard_of(i, &s)->real, 1);
		__atomic_fetch_add(&s->kept[why], 1, __ATOMIC_RELAXED);
	}
}

void sl_slot_flag(uint32_t flag)
{
	struct sl_slot *s;
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		sl_shard_of(i, &s);
		__atomic_fetch_or(&s->flags, flag, __ATOMIC_RELAXED);
	}
}

static uint64_t ticks(const struct sl_page *p)
{
	int64_t t[2] = { 0, 0 };

	if (LIKELY(p->clock == SL_CLOCK_TSC))
		return counter_ticks();
#if defined(__i386__)
	raw2(NR_clock_gettime, 0, t); /* clock_gettime64 */
#else
	raw2(NR_clock_gettime, 0, t);
#endif
	return (uint64_t)t[0] * 1000000000u + (uint64_t)t[1];
}

/* Makes the call for real, counts why, and how long it took. */
long sl_real(int why, int hint, long nr, const long a[6])
{
	uint64_t before, took;
	unsigned i;
	long r;

	if (!sl.levels)
		return raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
	before = ticks(sl.level[0].page);
	r = raw(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
	took = ticks(sl.level[0].page) - before;
	for (i = 0; i < sl.levels; i++) {
		struct sl_slot *s;
		struct sl_shard *h = sl_shard_of(i, &s);

		if (hint) {
			ADD(h->hints_real, 1);
			continue;
		}
		ADD(h->real, 1);
		ADD(h->ticks, took);
		__atomic_fetch_add(&s->kept[why], 1, __ATOMIC_RELAXED);
	}
	return r;
}

/* Whether the supervisor's promise to settle still stands. */
int sl_lease_runs(const struct sl_page *p)
{
	return LOAD(p->lease_until) - ticks(p) <= p->lease_span;
}

/* The magic link to FD, which readlink and open take. */
void sl_fd_link(int fd, char link[32])
{
	static const char head[] = "/proc/self/fd/";
	char digits[12];
	int n = 0, at;

	for (at = 0; head[at]; at++)
		link[at] = head[at];
	do
		digits[n++] = (char)('0' + fd % 10);
	while (fd /= 10);
	while (n)
		link[at++] = digits[--n];
	link[at] = 0;
}

static const char *path_of(const struct subject *s, char *buf, long size)
{
	char link[32];
	long r;

	if (s->path)
		return s->path;
	if (s->fd < 0)
		return NULL;
	sl_fd_link(s->fd, link);
	r = raw4(NR_readlinkat, AT_FDCWD_, link, buf, size - 1);
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

/* The class of the first rule that matches this request, or CLASS_NONE. A path that cannot be told
 * may or may not match: from there on nothing is certain, so nothing matches. */
static uint32_t match_rules(const struct level *l, const struct subject *s)
{
	const struct sl_page *p = l->page;
	char buf[4096];
	const char *path = p->rule_needs & SL_NEEDS_PATH ? path_of(s, buf, sizeof buf) : NULL;
	uint32_t uid = p->rule_needs & SL_NEEDS_USER ? (uint32_t)raw0(NR_geteuid) : 0, i;

	for (i = 0; i < p->rule_count && i < SL_RULE_MAX; i++) {
		const struct sl_rule *r = rule_of(p, i);

		if (!(l->rule_bits[i / 32] >> i % 32 & 1))
			continue;
		if (r->users && !user_matches(p, r, uid))
			continue;
		if (r->path && !path)
			return CLASS_NONE;
		if (!r->path || sl_glob((const char *)p + r->path, path, 1))
			return r->class_;
	}
	return CLASS_NONE;
}

static int class_of(const struct level *l, const struct subject *s, uint8_t *class_)
{
	uint32_t c = l->page->rule_count ? l->fixed : 0;

	if (UNLIKELY(c == CLASS_ASK))
		c = match_rules(l, s);
	if (c >= SL_CLASS_MAX)
		return SL_KEPT_RULE;
	*class_ = (uint8_t)c;
	if (LOAD(l->page->now_mask) >> c & 1)
		return l->page->rule_count ? SL_KEPT_RULE : SL_KEPT_NOW;
	return LATER;
}

/* Asks the supervisor about a mount that the page does not know. */
static int ask_mount(unsigned level, uint64_t id)
{
	struct sl_slot *s;

	sl_shard_of(level, &s);
	if (LOAD(s->ask_mount) != id) {
		STORE(s->ask_mount, id);
		sl_ring(sl.level[level].slots);
	}
	return SL_KEPT_UNKNOWN;
}

int sl_find_mount(const struct sl_page *p, uint64_t id, uint8_t *fs)
{
	uint32_t at = (uint32_t)(id * 0x9e3779b97f4a7c15ull >> 32), k;

	for (k = 0; k < SL_PROBE_MAX; k++) {
		const struct sl_mount *m = &p->mounts[(at + k) % SL_MOUNT_MAX];
		uint64_t got = LOAD(m->id);

		if (got == id && m->fs < SL_FS_MAX) {
			*fs = (uint8_t)m->fs;
			return 1;
		}
		if (!got)
			break;
	}
	return 0;
}

static int fs_by_dev(const struct sl_page *p, uint64_t dev, uint8_t *fs)
{
	uint32_t i;

	for (i = 0; i < SL_FS_MAX; i++) {
		if (LOAD(p->fs[i].state) != SL_FS_FREE && LOAD(p->fs[i].dev) == dev) {
			*fs = (uint8_t)i;
			return LATER;
		}
	}
	return SL_KEPT_UNKNOWN;
}


/* The file type (S_IFMT) of PATH below DIR, with AT_ flags AT, or -errno. */
long sl_type(int dir, const char *path, int at)
{
	union {
		char bytes[256];
		uint32_t words[64];
	} x;
	long r = raw5(NR_statx, dir, path, at | 0x4000 /* DONT_SYNC */, 1 /* STATX_TYPE */, &x);

	return is_error(r) ? r : (*(uint16_t *)(void *)&x.bytes[28] & S_IFMT_);
}

/* Looks where FD lies: the mount id and the type, by statx. */
static int look(unsigned level, int fd, uint8_t *fs)
{
	const struct sl_page *p = sl.level[level].page;
	union {
		char bytes[256];
		uint32_t words[64];
		uint64_t longs[32];
	} x;
	unsigned mode;

	if (is_error(raw5(NR_statx, fd, "", 0x1000 | 0x4000 /* EMPTY_PATH, DONT_SYNC */,
			  p->mount_mask | 1 /* STATX_TYPE */, &x)) ||
	    !(x.words[0] & p->mount_mask))
		return SL_KEPT_UNKNOWN;
	mode = *(uint16_t *)(void *)&x.bytes[28] & S_IFMT_;
	if (mode != S_IFREG_ && mode != S_IFDIR_ && mode != S_IFLNK_)
		return SL_KEPT_BLOCK;
	return sl_find_mount(p, x.longs[0x90 / 8], fs) ? LATER
						       : ask_mount(level, x.longs[0x90 / 8]);
}

static int fs_of(unsigned i, const struct subject *s, uint8_t *fs)
{
	const struct sl_page *p = sl.level[i].page;
	uint32_t single = LOAD(p->single);

	if (s->has_dev)
		return fs_by_dev(p, s->dev, fs);
	if (s->fd < 0) {
		*fs = SL_ALL_FS;
		return LATER;
	}
	if (LIKELY(single && single <= SL_FS_MAX && !LOAD(sl.level[i].slots->look) &&
		   sl.other_ns == 1)) {
		*fs = (uint8_t)(single - 1);
		return LATER;
	}
	return look(i, s->fd, fs);
}

static int want_sync(struct sl_slots *s)
{
	if (!LOAD(s->want_sync)) {
		STORE(s->want_sync, 1);
		sl_ring(s);
	}
	return SL_KEPT_SYNC_ALL;
}

/* Whether file system FS may owe; asks for it where it is not in the ledger yet. */
static int may_owe(unsigned i, uint8_t fs)
{
	const struct sl_page *p = sl.level[i].page;
	struct sl_slots *s = sl.level[i].slots;
	uint64_t bit;

	if (fs == SL_ALL_FS)
		return LOAD(p->sync_ok) ? LATER : want_sync(s);
	switch (LOAD(p->fs[fs].state)) {
	case SL_FS_OWES:
	case SL_FS_NOTHING:
		return LATER;
	case SL_FS_KNOWN:
		bit = 1ull << fs;
		if (!(__atomic_fetch_or(&s->want, bit, __ATOMIC_SEQ_CST) & bit))
			sl_ring(s);
		return SL_KEPT_LEDGER;
	default:
		return SL_KEPT_FS;
	}
}

/* Decides at one level. Returns LATER or why not. */
static int decide_level(unsigned i, struct verdict *v, const struct subject *s)
{
	const struct sl_page *p = sl.level[i].page;
	int kept;

	if (!LOAD(p->relax))
		return SL_KEPT_NOW;
	if (UNLIKELY(!sl_lease_runs(p)))
		return SL_KEPT_LEASE;
	kept = class_of(&sl.level[i], s, &v->class_[i]);
	if (kept != LATER)
		return kept;
	if (UNLIKELY(LOAD(p->error))) {
		v->error = (int)LOAD(p->error);
		return LATER;
	}
	kept = fs_of(i, s, &v->fs[i]);
	return kept == LATER ? may_owe(i, v->fs[i]) : kept;
}

/* Decides for one request that was counted already; see the head of this file for the order. */
void sl_decide(struct verdict *v, const struct subject *s)
{
	unsigned i;

	v->error = 0;
	v->kept = LATER;
	for (i = 0; i < sl.levels && v->kept == LATER; i++)
		v->kept = decide_level(i, v, s);
}

/* Notes the debt of a request that is about to be answered. */
int sl_owe(const struct verdict *v)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++) {
		const struct sl_page *p = sl.level[i].page;
		struct sl_slots *s = sl.level[i].slots;
		uint64_t *cell = &s->debt[v->fs[i]][v->class_[i]];

		if (v->fs[i] < SL_FS_MAX) {
			if (!LOAD(p->single) || LOAD(s->look))
				__atomic_fetch_add(&s->fs_requests[v->fs[i]], 1, __ATOMIC_RELAXED);
			if (p->fs[v->fs[i]].state == SL_FS_NOTHING)
				continue;
		}
		if (UNLIKELY(!LOAD(*cell)) && CAS(*cell, 0, ticks(p) | 1))
			sl_ring(s);
	}
	return 0;
}
