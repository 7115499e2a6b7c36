/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What the files of the library's core share, and what the rooms above may use. Whoever audits what
 * becomes of an fsync reads this folder and nothing else:
 *
 *   fsync.c     fsync, fdatasync, syncfs, sync: what a program calls
 *   decide.c    later, or for real? And the debt of what is put off
 *   rules.c     which rule matches
 *   real.c      calls that are made for real, counted and timed
 *   count.c     the slot of this process, its counters
 *   identity.c  what a descriptor is: kind, number, mount
 *   session.c   what this process keeps of its sessions
 *   room.c      memory for what a small stack has no room for
 *   page.h      the contract with the supervisor
 *
 * Below it lies base/, which knows nothing of sessions: what the kernel's headers say, the system
 * calls of each machine, globs. Above it, each calling down only: watch/ (events of a recording),
 * routes/ (every other way to ask for durability, and what changes what that stands on), entry.c
 * (syscall), join.c (which sessions a program that begins is in), gate/ (how a running program
 * comes here). Two calls go up: where a recording is made, fsync.c leaves a request to
 * watch/noted.c, which takes the same steps with a note; and the first request begins the library
 * where it was not begun, by join.c's sl_init or the gate's. A test reads the symbols of each room.
 *
 * Rules for whoever edits any of these files:
 *  - no libc: only raw(); the undefined symbols are weak ones that any libc has (see below);
 *  - no heap, no lock, no printing, never end the victim;
 *  - each loop has an end that no other program can put off; no wait outlasts the lease;
 *  - errno is set on failure only;
 *  - in doubt make the real call: slower, never wrong.
 */
#ifndef SYNCLATER_CORE_H
#define SYNCLATER_CORE_H

#include "base/glob.h"
#include "base/linux.h"
#include "base/machine.h"
#include "core/page.h"

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
 * pthread_setcancelstate  and none where the libc is not cancelled either (routes/async.c);
 * __libc_single_threaded  whether there is another thread that could (glibc 2.32);
 * dlsym, dlopen, dlclose, dlerror, dladdr, dl_iterate_phdr
 *                         the libc's own aio_fsync and liburing's own submit, at the first use
 *                         (routes/next.c);
 * aio_read, aio_suspend   to keep aio_fsync behind what was queued before it (routes/async.c);
 * gnu_get_libc_version    whether the libc is glibc, whose aio queue works like that;
 * __chk_fail              how glibc ends a program whose buffer is too small (watch/io.c). */
extern int *__errno_location(void) __attribute__((weak));
extern void pthread_testcancel(void) __attribute__((weak));
extern int pthread_setcanceltype(int type, int *old) __attribute__((weak));
extern int pthread_setcancelstate(int state, int *old) __attribute__((weak));
extern char __libc_single_threaded __attribute__((weak));
extern void *dlsym(void *handle, const char *name) __attribute__((weak));
extern const char *gnu_get_libc_version(void) __attribute__((weak));
extern char **environ __attribute__((weak));

/* What is ours is called directly, in the library, too: on i386 a call by way of a table needs a
 * register, and more of the stack. */
#pragma GCC visibility push(hidden)

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

/* In `trying`: the call is to restrict all threads of the process. */
#define SL_OF_ALL 1u

/* In `outside`: a call that restricts this process has not failed. */
#define SL_RESTRICTS 0x80000000u

/* `tries`: a bit for each place of `trying` that is taken, and above them how many calls have none,
 * or are too many to be counted. */
#define TRYING_MAX 24u
#define ONE_UNPLACED (1u << TRYING_MAX)
#define UNPLACED_MAX (255u * ONE_UNPLACED)

extern struct state {
	uint32_t ready;	  /* 0 no, 1 being set up, 2 done */
	uint32_t levels;  /* sessions found; with dead set, none of them counts */
	uint32_t alone;	  /* SYNCLATER_UNTIL=never and no session */
	uint32_t outside; /* not 0: it could not join, or restricts itself (SL_RESTRICTS): all is
			   * real. Asked by sl_is_outside. */
	/* Calls that may restrict this process and are under way: all is real. A forked child has
	 * those of its parent's; sl_begin_life takes off what no thread of its own is in. */
	uint32_t tries;
	/* How many of them were to restrict all threads, as this memory knows (`kins`). */
	uint32_t tsyncs;
	uint32_t filters; /* seccomp filters that it had at its start, or many (library only) */
	uint32_t followed;   /* what the victim executes is reached, too (gate only) */
	uint32_t keeps_sync; /* O_SYNC is not taken off: it may write unseen (gate only) */
	uint32_t began_as; /* the process in which it was set up: no fork of that (library only) */
	uint64_t trying[TRYING_MAX]; /* the threads that are in such calls, with SL_OF_ALL */
	uint64_t pid_ns; /* number of our pid namespace, where somebody told us; 0: look */
	/* The same number as in `tsyncs`, where a fork copies none: sl_slots.tsyncs, or memory that
	 * all who are forked share. NULL: there is none. */
	uint32_t *kins;
	struct level level[LEVELS_MAX];
} sl;

/* What O_SYNC that was taken off has left in a process, for good; and whether it was let go of. */
struct sl_marks {
	uint32_t here; /* this process, or one it was forked from, marked a description; or MAYBE */
	uint32_t lost; /* a mark was overwritten by the program: be careful with every write */
	uint32_t let_go; /* written by the tracer: what is put off in a ring from now on is undone */
};

#define SL_MARKS_MAYBE 2u /* it could not join: what it inherited may bear a mark */

extern struct sl_marks sl_marks; /* session.c */

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

/* identity.c
 *
 * What statx(2) says of a file: of what was asked for alone. */
struct sl_what {
	uint32_t mode, uid;
	uint64_t inode, size, dev;
	uint64_t mount; /* 0: not known */
	uint64_t born_ns, modified_ns, changed_ns;
};

/* What lies at PATH below DIR, by AT_ flags AT; with PATH NULL what DIR is itself. Returns -errno
 * where that fails. */
long sl_what_at(int dir, const char *path, int at, uint32_t mask, struct sl_what *w);
long sl_type(int dir, const char *path, int at);
long sl_magic_of(int fd);
void sl_forget(int fd);

/* session.c */
int sl_make_mine(void);
long sl_read_file(const char *path, char *buf, long size);
long sl_open_proc(const char *name, int flags);
long sl_open_fds(void);
void *sl_map(long fd, uint32_t size, uint64_t at);
uint32_t sl_number_in(const char *text);
uint32_t sl_owner_of(int fd);
long sl_ask_fd(const struct sl_page *page, uint32_t owner, int which);
uint64_t sl_namespace_number(const char *link);
uint64_t sl_pid_namespace(void);
void sl_fd_link(int fd, char link[32]);
void sl_digits(int fd, char text[12]);
int sl_is_filtered(void);
void sl_begin_life(void);
void sl_meet_kin(uint32_t pid);

/* Joins the sessions; in the library, at the first call. */
void sl_init(void);
int sl_active(void);

/* The call is to be made as it was asked, behind a gate by the program's own instruction: no call's
 * result. */
#define SL_AT_SITE ((long)(1ul << (8 * sizeof(long) - 1)))

/* rules.c */
void sl_apply_exe_rules(struct level *l, const char *exe);
int sl_rules_by_path(void);
const char *sl_path_of(int fd, char *buf, long size);
int sl_class_of(const struct level *l, int fd, const char *path, uint8_t *class_);

#define SOUND_MAX   256u
#define LINES_MAX   64

/* What belongs to this process alone. The kernel wipes it in a forked child (MADV_WIPEONFORK),
 * which then claims slots and rings of its own; a vfork child shares it, and counts for its
 * parent. Behind it is what a recording keeps (watch.h). */
extern struct mine {
	uint32_t known; /* 0 in a forked child, up to sl_begin_life */
	struct sl_slot *slot[LEVELS_MAX];
	uint32_t lines; /* how many threads got a line of counters */
	/* i386 aligns them by four: one that crosses a cache line locks the bus, and traps. */
	uint64_t line[LINES_MAX] __attribute__((aligned(64))); /* the thread that has one, and which
								* in the low three bits */
	uint64_t sound[SOUND_MAX]; /* sl_soundness of what was asked last by each descriptor */
} *sl_mine;

/* Bytes of that, and of what a recording keeps behind it. */
#define SL_MINE_BYTES 4096u
#ifdef SL_IO
#define SL_WATCH_BYTES (1536u << 10)
#else
#define SL_WATCH_BYTES (136u << 10)
#endif
SL_STATIC_ASSERT(sizeof(struct mine) <= SL_MINE_BYTES, "mine");

/* Where the program called us from. */
#define CALLER ((uint64_t)(uintptr_t)__builtin_return_address(0))

#define LOAD(p)         __atomic_load_n(&(p), __ATOMIC_SEQ_CST)
#define LOAD_RELAXED(p) __atomic_load_n(&(p), __ATOMIC_RELAXED)
#define STORE(p, v)     __atomic_store_n(&(p), v, __ATOMIC_SEQ_CST)
#define ADD(p, v)       __atomic_fetch_add(&(p), v, __ATOMIC_SEQ_CST)
#define CAS(p, o, n)    __sync_bool_compare_and_swap(&(p), o, n)

long sl_fail(long r);
long sl_cancellable_by_others(long nr, long a, long b, long c, long d, long e, long f);

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

/* real.c */
uint64_t sl_ticks(void);
long sl_cookie(void);
long sl_real_in_place(int why, int hint, long nr, const long args[6]);
long sl_real(int why, int hint, long nr, const long args[6]);
long sl_real_one(int why, long nr, long arg);
long sl_real_one_in_place(int why, long nr, long arg);

/* count.c */
struct sl_slot *sl_claim(unsigned level);
void sl_count_request(int hint);
void sl_count_failed(int hint);
void sl_count_kept(int why, int hint);
uint32_t sl_line(uint32_t at);
void sl_slot_flag(uint32_t flag);
void sl_slot_unflag(uint32_t flag);
void sl_ring(struct sl_slots *slots);
long sl_futex_wait(uint32_t *word, uint32_t value, long ms);

/* decide.c */
void sl_decide(struct verdict *v, int fd);
void sl_decide_by_number(struct verdict *v, const char *path, uint64_t dev);
int sl_would_keep(int fd);
int sl_would_keep_as(int fd, const char *path);
int sl_owes_unseen(int fd);
int sl_owe(const struct verdict *v);
int sl_owe_for(int fd);
int sl_lease_runs(const struct sl_page *p);
int sl_maybe_later(void);

/* fsync.c */
long sl_sync_fd(long nr, int fd, unsigned kind, uint64_t caller);
long sl_sync_all(uint64_t caller);
long sl_sync_written(int fd, int data_only, unsigned kind, uint64_t caller);
long sl_check_sync(long nr, int fd);
long sl_answer(const struct verdict *v, long nr, int fd);

/* watch/noted.c: the call that goes up. */
long sl_sync_noted(long nr, int fd, unsigned kind, uint64_t caller);

/* Whether a session records requests. */
static inline int sl_recording(void)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++)
		if (__atomic_load_n(&sl.level[i].page->record, __ATOMIC_RELAXED))
			return 1;
	return 0;
}

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

/* Now, in ticks of the clock of P's session. */
static inline uint64_t sl_ticks_of(const struct sl_page *p)
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

/* identity.c */
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

/* Whether all is real: it could not join, has restricted itself, or is about to. */
static ALWAYS_INLINE int sl_is_outside(void)
{
	if (UNLIKELY(sl_mine && !LOAD_RELAXED(sl_mine->known)))
		sl_begin_life();
	/* In this order: one that is over has said before whether it stands. */
	return UNLIKELY(LOAD(sl.tries) || LOAD_RELAXED(sl.outside));
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

#pragma GCC visibility pop

#endif
