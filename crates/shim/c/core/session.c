/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What a process keeps of the sessions that it is in, however it joined them (join.c,
 * gate/attach.c).
 */
#include "core/core.h"

/* Aligned: who forks copies what `tries`, `tsyncs` and `trying` are at one moment. */
struct state sl __attribute__((aligned(256)));
SL_STATIC_ASSERT(offsetof(struct state, pid_ns) <= 256, "in one page");

struct mine *sl_mine;

__attribute__((visibility("hidden"))) struct sl_marks sl_marks;

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

/* The inode number in a link like "pid:[4026531836]", or 0. */
uint64_t sl_namespace_number(const char *link)
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

/* The number of our pid namespace, or 0: behind a chroot there may be no /proc to ask. */
uint64_t sl_pid_namespace(void)
{
	return sl.pid_ns ? sl.pid_ns : sl_namespace_number("/proc/self/ns/pid");
}

/* The root of a procfs. */
static long open_proc_root(void)
{
	struct place w;
	long fd = raw4(NR_openat, AT_FDCWD_, "/proc", O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0);

	if (is_error(fd))
		return fd;
	if (sl_magic_of((int)fd) == 0x9fa0 /* PROC_SUPER_MAGIC */ &&
	    !is_error(sl_place((int)fd, &w)) &&
	    w.inode == 1 /* PROC_ROOT_INO */)
		return fd;
	raw1(NR_close, fd);
	return -ENOENT_;
}

/* Opens what the kernel has at NAME below /proc; where that is no procfs -ENOENT. Behind a chroot
 * anybody may have made /proc, and put links there that lead into somebody else's folder. */
long sl_open_proc(const char *name, int flags)
{
	long root = open_proc_root(), fd;

	if (is_error(root))
		return root;
	fd = raw4(NR_openat, root, name, flags | O_CLOEXEC_, 0);
	raw1(NR_close, root);
	return fd;
}

/* The folder of this thread's descriptors: /proc/self has those of the first thread. */
long sl_open_fds(void) { return sl_open_proc("thread-self/fd", O_PATH_ | O_DIRECTORY_); }

/* The decimal number that TEXT begins with. */
uint32_t sl_number_in(const char *text)
{
	uint32_t n = 0;

	for (; *text >= '0' && *text <= '9'; text++)
		n = n * 10 + (uint32_t)(*text - '0');
	return n;
}

/* FD in decimal. */
void sl_digits(int fd, char text[12])
{
	char digits[12];
	int n = 0, at = 0;

	do
		digits[n++] = (char)('0' + fd % 10);
	while (fd /= 10);
	while (n)
		text[at++] = digits[--n];
	text[at] = 0;
}

/* The magic link to FD, for a name to be shown: behind a chroot it may be anybody's. */
void sl_fd_link(int fd, char link[32])
{
	static const char head[] = "/proc/thread-self/fd/";
	int at;

	for (at = 0; head[at]; at++)
		link[at] = head[at];
	sl_digits(fd, link + at);
}

/* Whether a filter that is no session's may forbid a call that the program has not made, or kill at
 * it. What is attached was looked at then. */
int sl_is_filtered(void)
{
#ifdef SL_GATE
	return sl_is_outside();
#else
	unsigned i, net = 0;

	for (i = 0; i < sl.levels; i++)
		net |= LOAD_RELAXED(sl.level[i].page->net);
	/* One that could not join may ask: nothing of its own forbids that. */
	return LOAD(sl.tries) || LOAD(sl.outside) & SL_RESTRICTS || sl.filters > !!net;
#endif
}

/* The user that FD's file belongs to, as this process sees users; else what is no user's number. */
uint32_t sl_owner_of(int fd)
{
	struct sl_what w;

	return is_error(sl_what_at(fd, NULL, 0, STATX_UID_, &w)) ? UINT32_MAX : w.uid;
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

/* What stands for every user that this process's user namespace does not know. */
static uint32_t nobody(void)
{
	char text[16];

	if (sl_read_file("/proc/sys/kernel/overflowuid", text, sizeof text) <= 0)
		return 65534;
	return sl_number_in(text);
}

/* Whether OWNER, who has the session's page, listens at the other end. A name is free in every
 * network namespace but the session's own: anybody may have taken it there. */
static int is_of(long socket, uint32_t owner)
{
	struct {
		uint32_t pid, user, group;
	} peer;
	uint32_t size = sizeof peer;
	long r = raw5(NR_getsockopt, socket, 1, 17 /* SO_PEERCRED */, &peer, &size);

	return !is_error(r) && peer.user == owner && owner != nobody();
}

/* Asks the supervisor for the slots (WHICH is 0) or the rings (1): a process that changed its user
 * before it was executed may not open them. It answers those who descend from the session's
 * command, and nobody else. */
long sl_ask_fd(const struct sl_page *page, uint32_t owner, int which)
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
	raw5(NR_setsockopt, s, 1, 21, patience, sizeof patience); /* SO_SNDTIMEO, for connect */
	fd = raw3(NR_connect, s, &a, sizeof a);
	if (!is_error(fd))
		fd = is_of(s, owner) ? receive_fd(s, which) : -EACCES_;
	raw1(NR_close, s);
	return fd;
}

/* Makes the memory that belongs to this process alone. Returns 0 where there is none. */
int sl_make_mine(void)
{
	const unsigned long own = SL_MINE_BYTES + SL_WATCH_BYTES;
	long p = raw6(NR_mmap, 0, own + SL_ROOMS * SL_ROOM_BYTES, PROT_READ_ | PROT_WRITE_,
		      MAP_PRIVATE_ANON_, -1, 0);

	if (is_error(p) ||
	    is_error(raw3(NR_madvise, p, own, 18 /* MADV_WIPEONFORK, Linux 4.14 */)))
		return 0;
	sl_rooms_at((char *)p + own);
	STORE(((struct mine *)p)->known, 1);
	sl_mine = (struct mine *)p;
	return 1;
}

/* Where the memory of this process, and of all that are forked from it, counts the calls that were
 * to restrict all threads. */
void sl_meet_kin(uint32_t pid)
{
	/* Its number PID is 1 in every container; where its memory and its stack lie seldom is. */
	uint64_t any = (uint64_t)(uintptr_t)sl_mine ^ (uint64_t)(uintptr_t)&any << 7 ^ pid;

	any = (any * 0x9e3779b97f4a7c15ull >> 32) % SL_KIN_MAX;
	sl.kins = &sl.level[0].slots->tsyncs[any];
	STORE(sl.tsyncs, LOAD(*sl.kins));
	STORE(sl_mine->known, 1);
}

/* Begins what a forked child does for itself; before that it makes no call of ours.
 *
 * What its parent's other threads were in is nothing to it, but for filters that were to be put on
 * all threads: this one may have got it while it was forked. Where its memory is from before that
 * call began, the number says so that is not copied. (One that had failed, or is its kin's alone,
 * makes it real for nothing.) */
NOINLINE void sl_begin_life(void)
{
	uint64_t self = thread_number() & ~(uint64_t)SL_OF_ALL, there;
	uint32_t left = LOAD(sl.tries) / ONE_UNPLACED * ONE_UNPLACED;
	unsigned i;

	if (sl.kins && LOAD(*sl.kins) != LOAD(sl.tsyncs))
		__atomic_fetch_or(&sl.outside, SL_RESTRICTS, __ATOMIC_SEQ_CST);
	for (i = 0; i < TRYING_MAX; i++) {
		there = LOAD(sl.trying[i]);
		if (there & SL_OF_ALL || (there && there == self))
			left |= 1u << i;
		else
			STORE(sl.trying[i], 0);
	}
	STORE(sl.tries, left);
	STORE(sl_mine->known, 1);
}

/* Whether anything is to be decided here: in a session, or alone at `never`. Not once the victim
 * has a seccomp filter of its own, which may kill at any call that we make to find out. */
int sl_active(void)
{
#ifdef SL_GATE
	return LOAD(sl.ready) == 2 && LOAD(sl.levels) && !sl_is_outside();
#else
	if (UNLIKELY(LOAD_RELAXED(sl.ready) != 2))
		sl_init();
	return sl.ready == 2 && (sl.levels || sl.alone) && !sl_is_outside();
#endif
}
