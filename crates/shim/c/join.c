/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Joining the sessions that SYNCLATER_PAGE names, before anything is decided.
 *
 * Promise: a page or slots of another version, or that cannot be mapped, is as if there were none:
 * then every request is made for real. Never joined: a process that has a seccomp filter which the
 * supervisor has not, since that may kill at any call that we make to find out.
 */
#include "shim.h"

struct state sl;

struct mine *sl_mine;

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

/* Reads a whole small file, NUL-terminated. Returns its length or -errno. */
long sl_read_file(const char *path, char *buf, long size)
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

	if (sl_read_file("/proc/self/status", buf, sizeof buf) <= 0)
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

static void *map(long fd, uint32_t size, int prot)
{
	long p = raw6(NR_mmap, 0, size, prot, MAP_SHARED_, fd, 0);

	raw1(NR_close, fd);
	return is_error(p) ? NULL : (void *)p;
}

/* Maps SIZE bytes at AT of FD to read and write; NULL where that fails. */
void *sl_map(long fd, uint32_t size, uint64_t at)
{
#if defined(__i386__)
	long offset = (long)(at >> 12); /* mmap2 takes pages */
#else
	long offset = (long)at;
#endif
	long p = raw6(NR_mmap, 0, size, PROT_READ_ | PROT_WRITE_, MAP_SHARED_, fd, offset);

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

/* The control data that carries up to two descriptors, as recvmsg(2) lays it out. */
struct fd_message {
	size_t len;
	int level, type, fd[2];
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

/* Receives up to two descriptors and closes all but number WHICH. Returns that, or -errno. */
static long receive_fd(long socket, int which)
{
	struct fd_message c = { 0, 0, 0, { -1, -1 } };
	char byte;
	struct plain_iovec iov = { &byte, 1 };
	struct plain_msghdr m = { NULL, 0, &iov, 1, &c, sizeof c, 0 };
	long r = raw3(NR_recvmsg, socket, &m, 0x40000000 /* MSG_CMSG_CLOEXEC */);

	if (r != 1 || c.level != 1 || c.type != 1 /* SOL_SOCKET, SCM_RIGHTS */)
		return is_error(r) ? r : -EACCES_;
	if (c.fd[!which] >= 0)
		raw1(NR_close, c.fd[!which]);
	return c.fd[which] >= 0 ? c.fd[which] : -ENOENT_;
}

/* Asks the supervisor for the slots (WHICH is 0) or the rings (1): a process that changed its user
 * before it was executed may not open them. It answers those who descend from the session's
 * command, and nobody else. */
long sl_ask_fd(const struct sl_page *page, int which)
{
	struct {
		uint16_t family;
		char name[33];
	} __attribute__((packed)) a = { 1, { 0 } };
	/* Without the slots a process is out of the session for good; it may look for a ring again. */
	long patience[2] = { which ? 0 : 1, which ? 200000 : 0 }, s, fd;
	unsigned i;

	for (i = 0; i < 32; i++)
		a.name[i + 1] = (char)page->socket[i];
	s = raw3(NR_socket, 1, 1 | 02000000, 0); /* AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC */
	if (is_error(s))
		return s;
	raw5(NR_setsockopt, s, 1, 20, patience, sizeof patience); /* SO_RCVTIMEO */
	fd = raw3(NR_connect, s, &a, sizeof a);
	if (!is_error(fd))
		fd = receive_fd(s, which);
	raw1(NR_close, s);
	return fd;
}

/* Puts NAME in the place of the last component of PATH. */
static void set_last(char *path, long last, const char *name)
{
	do
		path[last++] = *name;
	while (*name++);
}

/* Maps the slots beside the page at PATH. */
static struct sl_slots *map_slots(char *path, long last, const struct sl_page *page)
{
	struct sl_slots *s;
	long fd;

	set_last(path, last, "slots");
	if (page->slots_size < sizeof(struct sl_slots))
		return NULL;
	fd = raw4(NR_openat, AT_FDCWD_, path, O_RDWR_ | O_CLOEXEC_ | O_NOFOLLOW_, 0);
	if (is_error(fd))
		fd = sl_ask_fd(page, 0);
	if (is_error(fd))
		return NULL;
	s = map(fd, page->slots_size, PROT_READ_ | PROT_WRITE_);
	return s && s->magic == SL_SLOTS_MAGIC && s->version == SL_VERSION ? s : NULL;
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
	set_last(path, last, "rings");
	for (i = 0; path[i] && i < (long)sizeof l->rings_path - 1; i++)
		l->rings_path[i] = path[i];
	l->rings_path[path[i] ? 0 : i] = 0;
	if (l->page->rule_count)
		sl_apply_exe_rules(l);
	/* Now: behind a chroot there may be no /proc to ask. */
	if (!sl.levels)
		sl.other_ns = sl_namespace_number("/proc/self/ns/mnt") == l->page->mount_ns ? 1 : 2;
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
	p = raw6(NR_mmap, 0, sizeof *sl_mine, PROT_READ_ | PROT_WRITE_, MAP_PRIVATE_ANON_, -1, 0);
	if (is_error(p) || is_error(raw3(NR_madvise, p, sizeof *sl_mine,
					 18 /* MADV_WIPEONFORK, Linux 4.14 */)))
		sl.levels = 0;
	else
		sl_mine = (struct mine *)p;
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
		sl.alone = until && same(until, "never");
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
