/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What the files of the shim share. Rules for whoever edits any of them:
 *  - no libc: only raw(); the undefined symbols are weak ones that any libc has (see below);
 *  - no heap, no lock, no printing, never end the victim; no wait that outlasts the lease;
 *  - errno is set on failure only;
 *  - in doubt make the real call: slower, never wrong.
 *
 * Map: session.c what this process keeps of its sessions
 *      join.c   finding them, in a program that was started with the library
 *      gate.c   how system calls of a running program come here, boot.c what put it there, attach.c
 *               its joining: in the flat image alone, which is most of these files with SL_GATE;
 *               gate_i386.c and boot_i386.c are what these have in assembler, for i386
 *      room.c   memory for what a small stack has no room for
 *      core.c   slots, counts, lease, verdicts, debt
 *      rules.c  which rule matches
 *      glob.c   matching names and paths
 *      calls.c  fsync, fdatasync, sync, syncfs, sync_file_range, pwritev2, syscall
 *      memory.c msync, and which file lies at an address
 *      osync.c  open and friends: O_SYNC taken off
 *      writes.c write and friends, which bring it back; fcntl
 *      mounts.c umount, chroot, prctl
 *      async.c  aio_fsync, io_submit
 *      uring.c  liburing
 *      next.c   the functions behind ours
 *      record.c events for a recording, and ring.c, where they go
 *      io.c     reads, writes, opens, renames and closes, timed: in libsynclater-io.so alone,
 *               which is these files with SL_IO defined
 */
#ifndef SYNCLATER_SHIM_H
#define SYNCLATER_SHIM_H

#include "page.h"
#include "syscall.h"

#ifdef SL_GATE
/* The flat image knows no relocations: nothing may be looked up in a table of addresses. */
#pragma GCC visibility push(hidden)
#endif

#pragma GCC poison malloc free calloc realloc printf puts abort exit memcpy memset strlen

#define EXPORT        __attribute__((visibility("default")))
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NOINLINE      __attribute__((noinline))
#define LIKELY(x)     __builtin_expect(!!(x), 1)
#define UNLIKELY(x)   __builtin_expect(!!(x), 0)

/* All that the shim takes from the libc it finds, all weak:
 *
 * __errno_location        where to put an errno;
 * pthread_testcancel      a thread looping in fsync can still be cancelled;
 * pthread_setcanceltype   so can one blocked in open (a FIFO) or write (a pipe);
 * pthread_setcancelstate  and none where the libc is not cancelled either (async.c);
 * __libc_single_threaded  whether there is another thread that could (glibc 2.32);
 * dlsym, dlopen, dlclose, dlerror, dladdr, dl_iterate_phdr
 *                         the libc's own aio_fsync and liburing's own submit, at the first use
 *                         (next.c);
 * aio_read, aio_suspend   to keep aio_fsync behind what was queued before it (async.c);
 * gnu_get_libc_version    whether the libc is glibc, whose aio queue works like that;
 * __chk_fail              how glibc ends a program whose buffer is too small (io.c). */
extern int *__errno_location(void) __attribute__((weak));
extern void pthread_testcancel(void) __attribute__((weak));
extern int pthread_setcanceltype(int type, int *old) __attribute__((weak));
extern int pthread_setcancelstate(int state, int *old) __attribute__((weak));
extern char __libc_single_threaded __attribute__((weak));
extern void *dlsym(void *handle, const char *name) __attribute__((weak));
extern const char *gnu_get_libc_version(void) __attribute__((weak));
extern char **environ __attribute__((weak));

#define EPERM_  1
#define ENOENT_ 2
#define ESRCH_  3
#define EBADF_  9
#define ENOMEM_ 12
#define EACCES_ 13
#define EFAULT_ 14
#define EBUSY_  16
#define EEXIST_ 17
#define EINVAL_ 22
#define ESPIPE_ 29
#define EPIPE_  32
#define ENAMETOOLONG_ 36
#define ENOSYS_ 38
#define EOPNOTSUPP_ 95
#define ETIMEDOUT_ 110

#define AT_FDCWD_   (-100)
#define O_ACCMODE_  3
#define O_WRONLY_   1
#define O_RDWR_     2
#define O_CREAT_    0100
#define O_EXCL_     0200
#define O_APPEND_   02000
#define O_NOCTTY_   0400
#define O_NONBLOCK_ 04000
#define O_DSYNC_    010000
#define O_NOATIME_  01000000
#define O_CLOEXEC_  02000000
#define O_SYNC_BIT_ 04000000 /* __O_SYNC: O_SYNC is this bit and O_DSYNC */
#define O_PATH_     010000000
#if defined(__aarch64__)
#define O_DIRECTORY_ 040000
#define O_NOFOLLOW_  0100000
#define O_DIRECT_    0200000
#define O_LARGEFILE_ 0400000
#else
#define O_DIRECTORY_ 0200000
#define O_NOFOLLOW_  0400000
#define O_DIRECT_    040000
#define O_LARGEFILE_ 0100000
#endif
#define O_TMPFILE_BIT_ 020000000

#define F_DUPFD_CLOEXEC_ 1030

/* fcntl: the signal of an open file, in which osync.c keeps its mark. */
#define F_SETSIG_ 10
#define F_GETSIG_ 11

#define S_IFMT_  0170000
#define S_IFDIR_ 0040000
#define S_IFBLK_ 0060000
#define S_IFREG_ 0100000
#define S_IFLNK_ 0120000

#define PROT_READ_        1
#define PROT_WRITE_       2
#define MAP_SHARED_       1
#define MAP_FIXED_        0x10
#define MAP_PRIVATE_ANON_ 0x22

#define LEVELS_MAX 4u

/* One session that this process belongs to; nested sessions make several. */
struct level {
	const struct sl_page *page;
	struct sl_slots *slots;
	uint32_t fixed; /* the class that the rules give this process, or CLASS_* */
	uint32_t rule_bits[SL_RULE_MAX / 32]; /* rules whose exe matches; only with CLASS_ASK */
	uint32_t owner; /* whose page that is, as this process sees users */
	char rings_path[256]; /* or empty: it is too long */
};
#define CLASS_NONE 100u /* no rule matches: real */
#define CLASS_ASK  101u /* a rule looks at the user or the path: ask at each request */

/* The verdict on one request: LATER, or why not. */
#define LATER (-1)
struct verdict {
	int kept;  /* LATER, or SL_KEPT_* */
	int error; /* a sticky write-back error: the answer, once the arguments are found good */
	uint8_t fs[LEVELS_MAX];
	uint8_t class_[LEVELS_MAX];
};

/* In `outside`: a call that restricts this process has not failed. */
#define SL_RESTRICTS 0x80000000u

extern struct state {
	uint32_t ready;    /* 0 no, 1 being set up, 2 done */
	uint32_t levels;   /* sessions found; with dead set, none of them counts */
	uint32_t alone;    /* SYNCLATER_UNTIL=never and no session */
	uint32_t filters;  /* seccomp filters that it had at its start, or many (library only) */
	uint32_t outside; /* not 0: it could not join, or restricts itself (SL_RESTRICTS): all is
			   * real. Asked by sl_is_outside. */
	uint32_t tries;	  /* what `mine` has of that name, where there is none */
	uint32_t followed; /* what the victim executes is reached, too (gate only) */
	uint32_t keeps_sync; /* O_SYNC is not taken off: it may write unseen (gate only) */
	uint32_t lives; /* how many processes one behind the other have had this memory, or tried */
	uint32_t began_as; /* the process in which it was set up: no fork of that (library only) */
	uint64_t pid_ns;   /* number of our pid namespace, where somebody told us; 0: look */
	struct level level[LEVELS_MAX];
} sl;

/* room.c */
#define SL_ROOM_BYTES 4096
#define SL_ROOMS      64u
void sl_rooms_at(char *at);
char *sl_room(void);
uint32_t sl_room_size(const void *room, uint32_t least);
void sl_leave(const void *room);

/* Room for N bytes, SL_ROOM_BYTES at most: a piece, or where none is free of this function's own
 * stack. To be left by sl_leave. */
#define ROOM(n)                                            \
	__extension__({                                    \
		void *room_ = sl_room();                   \
		room_ ? room_ : __builtin_alloca(n);       \
	})

/* What statx(2) says of a file: of what was asked for alone. */
struct sl_what {
	uint32_t mode, uid;
	uint64_t inode, size, dev;
	uint64_t mount; /* 0: not known */
	uint64_t born_ns, modified_ns, changed_ns;
};

/* What lies at PATH below DIR, by AT_ flags AT; with PATH NULL what DIR is itself. Returns -errno
 * where that fails. */
long sl_what_at(int dir, const char *path, int at, uint32_t mask, struct sl_what *w);

/* session.c */
int sl_make_mine(void);
long sl_read_file(const char *path, char *buf, long size);
long sl_magic_of(int fd);
long sl_open_proc(const char *name, int flags);
long sl_open_fds(void);
void *sl_map(long fd, uint32_t size, uint64_t at);
uint32_t sl_number_in(const char *text);
uint32_t sl_owner_of(int fd);
long sl_ask_fd(const struct sl_page *page, uint32_t owner, int which);

/* join.c, or attach.c */
void sl_init(void);
int sl_active(void);

/* The call is to be made as it was asked, behind a gate by the program's own instruction: no call's
 * result. */
#define SL_AT_SITE ((long)(1ul << (8 * sizeof(long) - 1)))

#ifdef SL_GATE
/* osync.c: where it stands whether any descriptor of the session bears a mark. */
extern uint32_t *sl_stripped_at;
long sl_gate_open(long nr, int dir, const char *path, int flags, unsigned mode);
long sl_gate_open_how(int dir, const char *path, const void *from, size_t size);
long sl_gate_open_handle(int mount, void *handle, int flags);
long sl_gate_write(int fd, long nr, const long a[6], uint64_t site);
void sl_wait_for_stacks(void);
long sl_gate_file_control(long nr, int fd, int cmd, long arg);

struct sl_errand;
long sl_attach(const struct sl_errand *e, const char *exe, int page, int slots);
#endif

/* rules.c */
void sl_apply_exe_rules(struct level *l, const char *exe);
int sl_rules_by_path(void);
const char *sl_path_of(int fd, char *buf, long size);
int sl_class_of(const struct level *l, int fd, const char *path, uint8_t *class_);

/* Our ring in one session. */
struct ring {
	struct sl_rings *rings;
	struct sl_ring *control;
	struct sl_hist *hist;
	struct sl_cell *first;
	uint64_t tried, pause; /* ticks: when we looked last, and for how long we do not again */
	uint64_t begin;         /* place where we began */
	uint64_t backed;        /* up to this place there is memory; UINT64_MAX: everywhere */
	uint32_t cells, state;
};
#define SL_BACK_CELLS 1024u

/* Whether we see what is written to a file: a running program's writes go their own way. */
#ifdef SL_GATE
#define SL_SEES_BYTES 0
#else
#define SL_SEES_BYTES SL_HAS_BYTES
#endif

/* What was told of a descriptor. */
struct fd_entry {
	uint64_t bytes;   /* written since its last sync */
	uint64_t checked; /* ticks */
	uint32_t id;      /* of the file; 0: nothing was told */
	uint32_t generation, streak, reserved;
};
#define FDS_MAX     4096
#define SOUND_MAX   256u
#define CALLERS_MAX 64

#ifdef SL_IO
/* What a descriptor was found to be, for io.c. */
#define IO_NAME_MAX 224
struct io_fd {
	uint64_t checked; /* ticks; 0: to be looked at again */
	uint64_t looked;  /* ticks of the last look */
	uint32_t hash;    /* of what it was then; 0: nothing */
	uint32_t named;   /* hash of what was opened as `name`; 0: no name is known */
	uint32_t file, reserved;
	struct sl_stat stat;
	char name[IO_NAME_MAX];
};
#endif

/* statx(2) */
struct statx_time {
	int64_t seconds;
	uint32_t ns;
	int32_t reserved;
};
struct statx_answer {
	uint32_t mask, block_size;
	uint64_t attributes;
	uint32_t links, uid, gid;
	uint16_t mode, spare;
	uint64_t inode, size, blocks, attributes_mask;
	struct statx_time accessed, born, changed, modified;
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
	uint64_t mount, more[13];
};
SL_STATIC_ASSERT(sizeof(struct statx_answer) == 256, "statx");
#define STATX_TYPE_       0x1u
#define STATX_UID_        0x8u
#define STATX_INO_        0x100u
#define STATX_MNT_ID_     0x1000u
#define STATX_ANY_MNT_ID_ 0x5000u /* or a unique one, Linux 6.8, which is told in its place */

#ifdef SL_GATE
/* Where a thread has statx answer, in the usual case. Whoever jumps out of a signal's handler in
 * between leaves it taken, as does another thread at a fork: who has it goes the longer way. (Not
 * wiped at a fork: one may be made by a handler that comes in between, and the child goes on.) */
#define LANES 64
extern struct lane {
	uint32_t taken, reserved[15];
	struct statx_answer x;
} sl_lanes[LANES];
#endif

#define LINES_MAX 64

/* What belongs to this process alone. The kernel wipes it in a forked child (MADV_WIPEONFORK),
 * which then claims slots and rings of its own; a vfork child shares it, and counts for its
 * parent. */
extern struct mine {
	uint32_t tries; /* calls that may restrict this process and are under way: all is real */
	uint32_t life;	/* which of `lives` this is, once it was asked; never that of its parent */
	struct sl_slot *slot[LEVELS_MAX];
	struct ring ring[LEVELS_MAX];
	uint64_t user_at; /* ticks */
	uint32_t user, told, tid_place;
	uint32_t introduced; /* the recorder has heard who we are */
	uint32_t lines; /* how many threads got a line of counters */
	/* i386 aligns them by four: one that crosses a cache line locks the bus, and traps. */
	uint64_t line[LINES_MAX] __attribute__((aligned(8))); /* the thread that has one, and which
								* in the low three bits */
	uint64_t caller[CALLERS_MAX];
	uint64_t sound[SOUND_MAX]; /* sl_soundness of what was asked last by each descriptor */
	struct fd_entry fd[FDS_MAX];
#ifdef SL_IO
	struct io_fd io[FDS_MAX];
#endif
} *sl_mine;

/* One request as it will be recorded. */
#define SL_TEXT_MAX 2048
struct note {
	struct sl_event e;
	struct sl_stat stat;
	struct fd_entry *entry; /* to be filled once this event is written, or NULL */
	uint32_t generation;    /* for it */
	uint32_t hash;          /* of what the file is */
	int good;               /* it is a file that can be synced */
	char text[SL_TEXT_MAX];
};

/* ring.c */
struct ring *sl_ring_of(unsigned level);
long sl_ring_back(struct ring *r, uint64_t to);
void sl_wake_recorder(struct sl_rings *r);

/* record.c */
int sl_recording(void);
struct note *sl_note(struct note *n, unsigned kind, int fd, uint64_t caller);
void sl_note_real(struct note *n);
void sl_note_drop(struct note *n);
void sl_note_end(struct note *n, const struct verdict *v, unsigned done, long result);
void sl_note_queued(unsigned kind, int fd, const struct verdict *v, int later);
void sl_note_written(int fd, long n);
void sl_note_opened(int fd);

/* Begins the note of a request; NULL where nothing is recorded, with which the other functions do
 * nothing. It ends with sl_note_end or sl_note_drop. */
#define NOTE(kind, fd, caller)                                                              \
	__extension__({                                                                     \
		struct note *note_ = NULL;                                                  \
		if (UNLIKELY(sl_recording()))                                               \
			note_ = sl_note(ROOM(sizeof(struct note)), kind, fd, caller);       \
		note_;                                                                      \
	})

#ifdef SL_IO
/* record.c, for io.c */
void sl_tell(void);
uint64_t sl_millisecond(void);
long sl_what_is(int fd, struct sl_stat *stat, uint32_t *hash);
int sl_note_count(struct ring *r, unsigned kind, unsigned place, uint64_t n);
void sl_note_slow(struct note *n, uint64_t caller);

/* io.c */
int sl_io_at(unsigned level);
void sl_io_hand_over(void);
uint64_t sl_io_start(void);
uint64_t sl_io_start_on(int fd);
void sl_io_end(unsigned kind, int fd, uint64_t start, long r, uint64_t caller);
void sl_io_opened(uint64_t start, long fd, int dir, const char *path, int flags, uint64_t caller);
long sl_io_syscall(long nr, long a, long b, long c, long d, long e, long f, uint64_t caller);

/* An open, timed; its value is the open's. */
#define TIMED_OPEN(dir, path, flags, caller, open)                          \
	__extension__({                                                     \
		uint64_t start_ = sl_io_start();                            \
		long fd_ = (open);                                          \
		sl_io_opened(start_, fd_, dir, path, flags, caller);        \
		fd_;                                                        \
	})
#else
#define TIMED_OPEN(dir, path, flags, caller, open) (open)
#endif

/* core.c */
uint64_t sl_ticks(void);
long sl_cookie(void);
uint64_t sl_namespace_number(const char *link);
uint64_t sl_pid_namespace(void);
struct sl_slot *sl_claim(unsigned level);
void sl_count_request(int hint);
void sl_count_failed(int hint);
void sl_count_kept(int why, int hint);
long sl_real_in_place(int why, int hint, long nr, const long args[6]);
long sl_real(int why, int hint, long nr, const long args[6]);
long sl_real_one(int why, long nr, long arg);
long sl_real_one_in_place(int why, long nr, long arg);
void sl_decide(struct verdict *v, int fd);
void sl_decide_by_number(struct verdict *v, const char *path, uint64_t dev);
int sl_would_keep(int fd);
int sl_would_keep_as(int fd, const char *path);
int sl_owes_unseen(int fd);
int sl_owe(const struct verdict *v);
int sl_owe_for(int fd);
int sl_lease_runs(const struct sl_page *p);
void sl_forget(int fd);
uint32_t sl_line(uint32_t at);
void sl_slot_flag(uint32_t flag);
void sl_slot_unflag(uint32_t flag);
void sl_ring(struct sl_slots *slots);
long sl_futex_wait(uint32_t *word, uint32_t value, long ms);
int sl_copy_in(void *to, const void *from, size_t len);
void sl_fd_link(int fd, char link[32]);
void sl_digits(int fd, char text[12]);
int sl_is_filtered(void);
long sl_type(int dir, const char *path, int at);

/* glob.c */
int sl_glob(const char *pattern, const char *text, int path_mode);

/* calls.c */
long sl_sync_written(int fd, int data_only, unsigned kind, uint64_t caller);
unsigned sl_done_as(const struct verdict *v);
long sl_fail(long r);
int sl_maybe_later(void);
long sl_covered(long nr, long a, long b, long c, long d, long e, long f, uint64_t caller);
long sl_cancellable_by_others(long nr, long a, long b, long c, long d, long e, long f);

/* Passes a call of syscall() on, or to the wrapper in opens.c, mounts.c or async.c that it has. */
long sl_other_syscall(long nr, long a, long b, long c, long d, long e, long f, uint64_t caller);

/* memory.c */
long sl_file_at(uint64_t address, char *name, uint32_t size, uint64_t *offset);
long sl_sync_memory(char *addr, size_t len, int flags, uint64_t caller);

/* osync.c */
void sl_tell_of_marks(void);
int sl_stays_real(int fd, const char *path);
long sl_mark(int fd, int flags, int is_new);
long sl_replace(int fd, int flags);
int sl_any_stripped(void);
int sl_wait_for_ledger(int fd);
int sl_mark_of(int fd);
long sl_written(int fd, long n, uint64_t caller);
long sl_write_call(int fd, int blocks, long nr, const long a[6], uint64_t caller);
int sl_mark_flags(int fd);
int sl_outside_with_marks(void);
long sl_open_at(int dir, const char *path, int flags, unsigned mode);
long sl_open_handle(int mount, void *handle, int flags);
long sl_file_control(long nr, int fd, int cmd, long arg);
long sl_open_how(int dir, const char *path, const void *how, size_t size);

/* mounts.c */
long sl_umount(long nr, const char *path, long flags);
int sl_restricts(long nr, const long a[6]);
long sl_restrict(long nr, const long a[6]);

/* async.c */
long sl_io_submit(long context, long n, void **blocks);

/* uring.c */
void sl_put_off_ring(void *ring);

/* next.c */
struct sl_next { /* of one function: for all, then for callers */
	struct sl_found {
		uint64_t key; /* of what it is true */
		void *function;
	} of[9];
};
void *sl_next(struct sl_next *next, const char *name, uint64_t caller);

/* Where the program called us from. */
#define CALLER ((uint64_t)(uintptr_t)__builtin_return_address(0))

#define LOAD(p)         __atomic_load_n(&(p), __ATOMIC_SEQ_CST)
#define LOAD_RELAXED(p) __atomic_load_n(&(p), __ATOMIC_RELAXED)
#define STORE(p, v)     __atomic_store_n(&(p), v, __ATOMIC_SEQ_CST)
#define ADD(p, v)       __atomic_fetch_add(&(p), v, __ATOMIC_SEQ_CST)
#define CAS(p, o, n)    __sync_bool_compare_and_swap(&(p), o, n)

static inline void testcancel(void)
{
	if (pthread_testcancel)
		pthread_testcancel();
}

/* What the kernel returned, as a libc returns it. Inlined, as is all that stands between a system
 * call and the return to the program: each return to a frame that was there before the call costs
 * 20 to 50 ns where the kernel has spoilt the prediction of returns (Safe RET on AMD). */
static ALWAYS_INLINE long sl_set(long r)
{
	return LIKELY(!is_error(r)) ? r : sl_fail(r);
}

/* A call that may block for ever (a FIFO's open, a pipe's write): cancellable while it does, as in
 * the libcs. A thread that is alone can only have cancelled itself: it does not wait for others. */
static ALWAYS_INLINE long sl_cancellable(long nr, long a, long b, long c, long d, long e, long f)
{
	if (UNLIKELY(!&__libc_single_threaded || !__libc_single_threaded))
		return sl_cancellable_by_others(nr, a, b, c, d, e, f);
	testcancel();
	return raw(nr, a, b, c, d, e, f);
}

/* The factor is one of 1,200 that were tried: it spreads threads whose stacks lie 2 or 8 MiB or 64
 * to 256 KiB apart, as those of the libcs and of Rust do, best. */
static inline uint32_t thread_hash(void)
{
	return (uint32_t)(thread_number() >> 6) * 0x855c3845u;
}

/* Which of 8 lines of counters this thread uses: each gets the next, so that up to 8 threads have
 * one of their own, which tells who could have waited at the same time as whom. */
static inline uint32_t shard_number(void)
{
	uint32_t at = thread_hash() >> 26;
	uint64_t there = LOAD_RELAXED(sl_mine->line[at]);

	if (LIKELY((there ^ thread_number()) < SL_SHARDS))
		return (uint32_t)there % SL_SHARDS;
	return sl_line(at);
}

/* Where this thread counts at a level; SLOT, if any, is set to our slot there. */
static inline struct sl_shard *shard_of(unsigned i, struct sl_slot **slot)
{
	uint32_t hash = shard_number();
	struct sl_slot *s = LOAD_RELAXED(sl_mine->slot[i]);

	if (UNLIKELY(!s))
		s = sl_claim(i);
	if (slot)
		*slot = s;
	return &s->shard[hash % SL_SHARDS];
}

/* statx of FD itself. Since Linux 6.11 without a path: a tenth less than with an empty one. */
static ALWAYS_INLINE long sl_statx(int fd, uint32_t mask, struct statx_answer *x)
{
	static int empty;
	int at = 0x1000 | 0x4000; /* EMPTY_PATH, DONT_SYNC */
	long r = raw5(NR_statx, fd, LOAD_RELAXED(empty) ? "" : NULL, at, mask, x);

	if (LIKELY(r != -EFAULT_))
		return r;
	__atomic_store_n(&empty, 1, __ATOMIC_RELAXED);
	return raw5(NR_statx, fd, "", at, mask, x);
}

/* What a descriptor is. */
struct place {
	uint64_t dev, inode;
	uint64_t mount; /* 0: not known */
	uint32_t type; /* S_IFMT */
};
#define PLACE_MASK (STATX_ANY_MNT_ID_ | STATX_INO_ | STATX_TYPE_)

/* room.c */
long sl_place(int fd, struct place *w);

/* X is written to. */
static ALWAYS_INLINE long sl_place_of(int fd, struct place *w, struct statx_answer *x)
{
	long r = sl_statx(fd, PLACE_MASK, x);

	if (UNLIKELY(is_error(r)))
		return r;
	w->type = x->mode & S_IFMT_;
	w->inode = x->inode;
	w->dev = (uint64_t)x->dev_major << 32 | x->dev_minor;
	w->mount = x->mask & STATX_ANY_MNT_ID_ ? x->mount : 0;
	return 0;
}

/* What the page says of the number DEV on a mount (0: not known which): an index, SL_NAME_*, or
 * UINT32_MAX: nothing. 0 is no number: a subvolume that was deleted has it. */
static inline uint32_t sl_named(const struct sl_page *p, uint64_t dev, uint64_t mount)
{
	uint32_t at = (uint32_t)(dev * 0x9e3779b97f4a7c15ull >> 32), k, turn, fs;

	for (k = 0; k < SL_PROBE_MAX; k++) {
		const struct sl_name *n = &p->names[(at + k) % SL_NAME_MAX];
		uint64_t there, on;

		turn = LOAD(n->turn);
		there = LOAD(n->dev);
		if (!there)
			break;
		if (UNLIKELY(there != dev))
			continue;
		on = LOAD(n->mount);
		fs = LOAD(n->fs);
		if (UNLIKELY(turn % 2 || LOAD(n->turn) != turn))
			break;
		if (!on || on == mount)
			return fs;
	}
	return UINT32_MAX;
}

/* A number for a file behind a descriptor, since the time that its file system is HELD; never 0. */
static inline uint64_t sl_soundness(int fd, const struct place *w, uint32_t held)
{
	uint64_t h = (w->inode ^ (uint64_t)(uint32_t)fd << 32) * 0x9e3779b97f4a7c15ull;

	h = (h ^ h >> 29 ^ w->dev) * 0xbf58476d1ce4e5b9ull;
	h = (h ^ h >> 32 ^ held) * 0x94d049bb133111ebull;
	return h | 1;
}

/* Asks the kernel for a file's write-back errors, as fsync does, and of a part that has nothing to
 * write. It refuses what fsync refuses, too. */
static ALWAYS_INLINE long sl_ask_errors(int fd)
{
	const int64_t far = 0x7ffffffffffff000;

#if __SIZEOF_LONG__ == 8
	return raw6(NR_sync_file_range, fd, far, 1, 1 /* WAIT_BEFORE */, 0, sl_cookie());
#else
	return raw_sync_file_range(fd, far, 1, 1 /* WAIT_BEFORE */);
#endif
}

/* The file behind FD has been asked for its errors. */
static ALWAYS_INLINE void sl_remember(int fd, uint64_t soundness)
{
	__atomic_store_n(&sl_mine->sound[(unsigned)fd % SOUND_MAX], soundness, __ATOMIC_RELAXED);
}

/* Whether a call that may restrict this process is under way. */
static ALWAYS_INLINE int sl_is_trying(void)
{
	return (sl_mine && LOAD(sl_mine->tries)) || LOAD(sl.tries);
}

/* Whether all is real: it could not join, has restricted itself, or is about to. */
static ALWAYS_INLINE int sl_is_outside(void)
{
	/* In this order: one that is over has said before whether it stands. */
	return UNLIKELY(sl_is_trying() || LOAD_RELAXED(sl.outside));
}

/* The usual case at one look, for opens, writes and fcntl: one session, nothing is recorded, and no
 * descriptor of it has lost its O_SYNC. Whoever has such a descriptor got it behind that word. */
static ALWAYS_INLINE int sl_is_plain(void)
{
	const struct level *l = &sl.level[0];

	return LIKELY(LOAD_RELAXED(sl.ready) == 2 && !sl_is_outside() && sl.levels == 1 &&
		      !LOAD_RELAXED(l->page->record) && !LOAD_RELAXED(l->slots->stripped));
}

/* Another file is open as FD now. */
static ALWAYS_INLINE void sl_forget_one(int fd)
{
	__atomic_store_n(&sl_mine->sound[(unsigned)fd % SOUND_MAX], 0, __ATOMIC_RELAXED);
}

/* Counts a request on a superblock, where the session has several. */
static ALWAYS_INLINE void sl_count_fs(const struct level *l, uint32_t fs)
{
	if (LOAD_RELAXED(l->page->several))
		__atomic_fetch_add(&l->slots->fs_requests[fs], 1, __ATOMIC_RELAXED);
}

#ifdef SL_GATE
/* Where statx answers in the usual case: the lane of this thread, or NULL where another one is in
 * it. */
static ALWAYS_INLINE struct statx_answer *sl_take_answer(void)
{
	struct lane *lane = &sl_lanes[thread_hash() >> 26];

	return __atomic_exchange_n(&lane->taken, 1, __ATOMIC_ACQUIRE) ? NULL : &lane->x;
}

static ALWAYS_INLINE void sl_leave_answer(struct statx_answer *x)
{
	struct lane *lane = (struct lane *)(void *)((char *)x - offsetof(struct lane, x));

	if (LIKELY(x))
		__atomic_store_n(&lane->taken, 0, __ATOMIC_RELEASE);
}
#else
#define sl_take_answer() ((struct statx_answer *)ROOM(sizeof(struct statx_answer)))
#define sl_leave_answer  sl_leave
#endif

/* The usual case at one look, for the calls that programs make most: no rules, a file system whose
 * debt is noted already. Reads what sl_decide reads. Returns the debt that a request adds to, or
 * NULL where sl_decide has to tell. FRESH is set to 0, or to the number of a file that was not
 * asked for its errors yet. X is written to; where it is NULL there is no usual case. */
static ALWAYS_INLINE const uint64_t *usual_debt(const struct level *l, int fd, uint64_t *fresh,
						struct statx_answer *x)
{
	const struct sl_page *p = l->page;
	struct place w;
	uint32_t fs;

	if (!LOAD(p->relax) || LOAD_RELAXED(p->record) || p->rule_count || LOAD(p->now_mask) & 1 ||
	    LOAD(p->error) || p->clock != SL_CLOCK_TSC ||
	    LOAD(p->lease_until) - counter_ticks() > p->lease_span)
		return NULL;
	if (!x || is_error(sl_place_of(fd, &w, x)) || (w.type != S_IFREG_ && w.type != S_IFDIR_))
		return NULL;
	fs = sl_named(p, w.dev, w.mount);
	if (fs >= SL_FS_MAX || LOAD(p->fs[fs].state) != SL_FS_OWES || !LOAD(l->slots->debt[fs][0]))
		return NULL;
	*fresh = sl_soundness(fd, &w, LOAD_RELAXED(p->fs[fs].held));
	if (LIKELY(LOAD_RELAXED(sl_mine->sound[(unsigned)fd % SOUND_MAX]) == *fresh))
		*fresh = 0;
	if (LIKELY(!*fresh))
		sl_count_fs(l, fs);
	return &l->slots->debt[fs][0];
}

#endif
