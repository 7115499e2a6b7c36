/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Recording: every request as an event in this process's ring, for the recorder to take away.
 *
 * Promise: never waits, for nobody. What finds no room is counted, exactly. A request that is not
 * recorded is answered as one that is.
 *
 * What a descriptor is costs more to find out than everything else here (its path 3 us, its inode
 * 0.4 us), so it is told once, with the first event that names the descriptor, and from then on it
 * is only made sure that the descriptor is still the same file: by the inode's generation (0.1 us
 * more than the check of the arguments, ext4 and XFS), else by statx. A descriptor that was the
 * same file SURE times in a row is looked at each SURE requests or each millisecond; an open() that
 * returns its number ends that. So an event can name the wrong file only where a program closes and
 * opens a descriptor past the calls that we see, within a millisecond of its last sync.
 */
#include "watch/watch.h"

#define SURE        32u
#define LIBRARY_MAX 1024 /* bytes of a path */
SL_STATIC_ASSERT(LIBRARY_MAX <= SL_TEXT_MAX, "a note has room for one");

#ifdef __i386__
#define GETVERSION 0x80047601ul
#else
#define GETVERSION 0x80087601ul
#endif
#define EXT4_MAGIC 0xef53
#define XFS_MAGIC  0x58465342

/* A millisecond in ticks: the lease's span is two seconds. */
static uint64_t millisecond(void) { return sl.level[0].page->lease_span >> 11; }

/* The thread's number. Both libcs keep it where the thread pointer points; that is made sure once a
 * process, since the place is theirs to change. What is behind a gate may be nobody's thread: Go's
 * pointer points nowhere. */
static uint32_t thread_id(void)
{
#if defined(__x86_64__) && !defined(SL_GATE)
	unsigned long at = gnu_get_libc_version ? 0x2d0 : 0x30;
	const uint32_t *place = (const uint32_t *)(thread_number() + at);
	uint32_t tid;

	if (LIKELY(LOAD_RELAXED(sl_watched()->tid_place) == 1))
		return LOAD_RELAXED(*place);
	tid = (uint32_t)raw0(NR_gettid);
	if (!sl_watched()->tid_place)
		sl_watched()->tid_place = LOAD_RELAXED(*place) == tid ? 1 : 2;
	return tid;
#else
	return (uint32_t)raw0(NR_gettid);
#endif
}

/* The effective user, at most a millisecond old. */
static uint32_t user(uint64_t now)
{
	uint64_t at = LOAD_RELAXED(sl_watched()->user_at);

	if (!at || now - at > millisecond()) {
		STORE(sl_watched()->user, (uint32_t)raw0(NR_geteuid));
		STORE(sl_watched()->user_at, now | 1);
	}
	return LOAD_RELAXED(sl_watched()->user);
}

/* Takes COUNT cells of a ring; PLACE is the first one's. NULL: no room. */
static struct sl_cell *take(struct ring *r, uint64_t count, uint64_t *place)
{
	uint32_t mask = r->cells - 1;
	unsigned tries;

	for (tries = 0; tries < 256; tries++) {
		/* In this order, or others may have gone on in between and the reader with them. */
		uint64_t tail = LOAD(r->control->tail), head = LOAD(r->control->head);

		if (head - tail + count > r->cells) {
			if (LOAD(r->control->tail) == tail)
				break;
			continue;
		}
		if (UNLIKELY(head + count > LOAD_RELAXED(r->backed)) &&
		    is_error(sl_ring_back(r, head + count)))
			break;
		if (!CAS(r->control->head, head, head + count))
			continue;
		*place = head;
		if ((head ^ (head + count)) & (r->cells / 4))
			sl_wake_recorder(r->rings);
		return &r->first[head & mask];
	}
	return NULL;
}

static void copy(void *to, const void *from, size_t n)
{
	const uint8_t *f = from;
	volatile uint8_t *t = to; /* or the compiler makes it a memcpy */

	while (n--)
		*t++ = *f++;
}

/* Copies one cell's payload; by words, which cells are aligned to. */
static void fill(struct sl_cell *to, const void *from)
{
	const uint64_t *f = from;
	uint64_t *t = (uint64_t *)(void *)to;
	unsigned i;

	/* The first word holds the state, which publishes: it is stored by the caller. */
	*(uint32_t *)(void *)((char *)to + 4) = ((const uint32_t *)from)[1];
	for (i = 1; i < 8; i++)
		__atomic_store_n(&t[i], f[i], __ATOMIC_RELAXED);
}

/* Writes the event E, with STAT and TEXT where it has them, into the ring of one level. Returns
 * whether it found room. */
static int put_into(struct ring *r, uint32_t type, const struct sl_event *e,
		    const struct sl_stat *stat, const char *text)
{
	uint32_t texts = (e->text + SL_CELL_BYTES - 1) / SL_CELL_BYTES, k, mask = r->cells - 1;
	uint32_t count = 1 + (stat != NULL) + texts;
	uint64_t place, at;
	struct sl_cell *first = take(r, count, &place);

	if (!first)
		return 0;
	at = place + 1;
	if (stat) {
		struct sl_cell *c = &r->first[at & mask];

		fill(c, stat);
		__atomic_store_n(&c->state, SL_CELL_STATE(SL_CELL_STAT, 1, at), __ATOMIC_RELAXED);
		at++;
	}
	for (k = 0; k < texts; k++, at++) {
		struct sl_cell *c = &r->first[at & mask];
		uint32_t left = e->text - k * SL_CELL_BYTES;

		copy(c->bytes, text + k * SL_CELL_BYTES,
		     left < SL_CELL_BYTES ? left : SL_CELL_BYTES);
		__atomic_store_n(&c->state, SL_CELL_STATE(SL_CELL_TEXT, 1, at), __ATOMIC_RELAXED);
	}
	fill(first, e);
	__atomic_store_n(&first->state, SL_CELL_STATE(type, count, place), __ATOMIC_RELEASE);
	return 1;
}

/* Writes an event for every session that records; FS is its file system in each, or NULL. Returns
 * 0 where one of them lost it; requests that are lost are counted. */
static int put(uint32_t type, struct sl_event *e, const struct sl_stat *stat, const char *text,
	       const uint8_t *fs)
{
	unsigned i;
	int all = 1;

	for (i = 0; i < sl.levels; i++) {
		struct ring *r;

		if (!LOAD_RELAXED(sl.level[i].page->record))
			continue;
		r = sl_ring_of(i);
		if (fs)
			e->fs = fs[i];
		if (!r) {
			struct sl_slot *s;

			shard_of(i, &s);
			ADD(s->lost, type == SL_CELL_EVENT);
			all = 0;
		} else if (!put_into(r, type, e, stat, text)) {
			ADD(r->control->lost, type == SL_CELL_EVENT);
			all = 0;
		}
	}
	return all;
}

/* Whether there is a ring for every session that records: else it is of no use to find out what
 * would be told. */
static int can_tell(void)
{
	unsigned i;

	for (i = 0; i < sl.levels; i++)
		if (LOAD_RELAXED(sl.level[i].page->record) && !sl_ring_of(i))
			return 0;
	return 1;
}

/* Tells who this process is: by the time the recorder looks it may be gone. Returns 0 where that
 * was lost. */
static NOINLINE int tell_process(char text[SL_TEXT_MAX])
{
	struct sl_event e = { .tid = (uint32_t)raw0(NR_getpid), .fd = -1 };
	long n, r;

	if (!can_tell())
		return 0;
#ifdef SL_IO
	sl_io_hand_over(); /* while it still counts for the program that we were before */
#endif
	n = raw4(NR_readlinkat, AT_FDCWD_, "/proc/self/exe", text, 1000);
	n = is_error(n) ? 0 : n;
	text[n++] = 0;
	r = sl_read_file("/proc/self/cmdline", text + n, SL_TEXT_MAX - n);
	e.uid = (uint32_t)raw0(NR_geteuid);
	e.text = (uint16_t)(n + (is_error(r) ? 0 : r));
	return put(SL_CELL_PROCESS, &e, NULL, text, NULL);
}

/* Forgets what was told where a recording has begun since: its recorder has not heard it. ROOM is
 * written to: the program's stack may be a small one. */
static void forget(char room[SL_TEXT_MAX])
{
	uint32_t sum = 0;
	unsigned i;

	for (i = 0; i < sl.levels; i++)
		sum += LOAD_RELAXED(sl.level[i].page->record) << (8 * i);
	if (LIKELY(LOAD_RELAXED(sl_watched()->told) == sum && LOAD_RELAXED(sl_watched()->introduced)))
		return;
	if (LOAD_RELAXED(sl_watched()->told) != sum) {
		for (i = 0; i < FDS_MAX; i++)
			STORE(sl_watched()->fd[i].id, 0);
		for (i = 0; i < CALLERS_MAX; i++)
			STORE(sl_watched()->caller[i], 0);
		STORE(sl_watched()->introduced, 0);
		STORE(sl_watched()->told, sum);
	}
	if (tell_process(room))
		STORE(sl_watched()->introduced, 1);
}

/* What this process has told of an earlier session is nothing to the next. */
void sl_forget_recording(void)
{
	STORE(sl_watched()->ring[0].state, 0);
	STORE(sl_watched()->ring[0].tried, 0);
	STORE(sl_watched()->told, 0);
	STORE(sl_watched()->introduced, 0);
}

/* What FD is like, and a number for what it is. */
static long what_is(int fd, struct sl_stat *stat, uint32_t *hash)
{
	struct sl_what w;
	/* type, mode, mtime, ctime, inode, size, birth, mount id */
	long r = sl_what_at(fd, NULL, 0, 0x1bc3, &w);

	if (is_error(r))
		return r;
	stat->mode = w.mode;
	stat->inode = w.inode;
	stat->mount = w.mount;
	stat->dev = w.dev;
	stat->mtime_ns = w.modified_ns;
	stat->ctime_ns = w.changed_ns;
	stat->size = w.size;
	/* Birth and inode together: numbers are given to new files at once. */
	*hash = (uint32_t)((w.inode ^ w.born_ns ^ w.dev << 7) * 0x9e3779b97f4a7c15ull >> 32) | 1;
	return 0;
}

static long ask(struct note *n)
{
	long r = what_is(n->e.fd, &n->stat, &n->hash);

	n->e.has |= is_error(r) ? 0 : SL_HAS_STAT;
	return r;
}

/* The generation of FD's inode where its file system gives each file another one; else 0. */
static uint32_t generation(int fd)
{
	unsigned long g = 0;
	long magic = sl_magic_of(fd);

	if ((magic != EXT4_MAGIC && magic != XFS_MAGIC) ||
	    is_error(raw3(NR_ioctl, fd, GETVERSION, &g)))
		return 0;
	return (uint32_t)g | 1;
}

/* Tells what FD is: the path as well. */
static void define(struct note *n, struct fd_entry *d)
{
	char link[32];
	long r;

	if (!(n->e.has & SL_HAS_STAT) && is_error(ask(n))) {
		n->e.has |= SL_HAS_NO_FILE;
		return;
	}
	sl_fd_link(n->e.fd, link);
	r = raw4(NR_readlinkat, AT_FDCWD_, link, n->text, sizeof n->text);
	n->e.text = is_error(r) ? 0 : (uint16_t)r;
	n->e.has |= SL_HAS_TEXT;
	n->entry = d;
	n->generation = d ? generation(n->e.fd) : 0;
}

/* The event that tells what its descriptor is was written: events behind it need not. Not before:
 * that of another thread could come first. */
static void note_told(const struct note *n)
{
	STORE(n->entry->generation, n->generation);
	STORE(n->entry->streak, 0);
	STORE(n->entry->id, n->hash);
}

/* Whether the descriptor is still what was told. With SKIPPING the cheapest way; it also finds
 * that FD is a file that can be synced (n->good). */
static int is_told(struct note *n, struct fd_entry *d, int skipping)
{
	uint32_t streak = LOAD_RELAXED(d->streak);
	unsigned long g = 0;

	if (!LOAD_RELAXED(d->id))
		return 0;
	if (streak > SURE && streak % SURE && n->e.start - d->checked < millisecond()) {
		STORE(d->streak, streak + 1);
		return 1;
	}
	if (skipping && d->generation) {
		if (is_error(raw3(NR_ioctl, n->e.fd, GETVERSION, &g)) ||
		    ((uint32_t)g | 1) != d->generation)
			return 0;
		n->good = 1;
	} else if (is_error(ask(n)) || n->hash != LOAD_RELAXED(d->id)) {
		return 0;
	}
	d->checked = n->e.start;
	__atomic_store_n(&d->streak, streak + 1, __ATOMIC_RELAXED);
	return 1;
}

static void identify(struct note *n, int skipping)
{
	int fd = n->e.fd;
	struct fd_entry *d = fd >= 0 && fd < FDS_MAX ? &sl_watched()->fd[fd] : NULL;
	uint32_t before = d ? LOAD_RELAXED(d->id) : 0;

	if (fd < 0)
		return;
	if (!d || !is_told(n, d, skipping))
		define(n, d);
	if (d) {
		/* Of another file that had this number: not to be told apart. */
		int other = before && n->e.has & SL_HAS_TEXT;

		n->e.bytes = __atomic_exchange_n(&d->bytes, 0, __ATOMIC_RELAXED);
		n->e.has |= other || n->e.has & SL_HAS_NO_FILE ? 0 : SL_SEES_BYTES;
	}
}

static NOINLINE void tell_new_caller(uint32_t tid, uint64_t *told, uint64_t address,
				     char name[LIBRARY_MAX])
{
	struct sl_event e = { .tid = tid, .fd = -1, .caller = address };
	long r;

	if (!can_tell())
		return;
	r = sl_file_at(address, name, LIBRARY_MAX, &e.start);
	e.text = is_error(r) ? 0 : (uint16_t)r;
	if (put(SL_CELL_CALLER, &e, NULL, name, NULL))
		STORE(*told, address);
}

/* Tells in which file the code at ADDRESS lies, once. NAME is written to. */
static void tell_caller(struct note *n, uint64_t address, char name[LIBRARY_MAX])
{
	uint64_t *told = &sl_watched()->caller[address * 0x9e3779b97f4a7c15ull >> 58];

	if (UNLIKELY(LOAD_RELAXED(*told) != address))
		tell_new_caller(n->e.tid, told, address, name);
}

/* Begins the note of a request in the room N. */
struct note *sl_note(struct note *n, unsigned kind, int fd, uint64_t caller)
{
	n->good = 0;
	forget(n->text);
	n->stat.mode = 0;
	n->entry = NULL;
	n->e = (struct sl_event){ .kind = (uint8_t)kind, .fd = fd, .fs = 255, .caller = caller };
	n->e.start = sl_ticks();
	n->e.tid = thread_id();
	n->e.uid = user(n->e.start);
	if (caller)
		tell_caller(n, caller, n->text);
	identify(n, sl_maybe_later());
	n->e.start = sl_ticks();
	return n;
}

/* There was no request after all. */
void sl_note_drop(struct note *n)
{
	if (n)
		sl_leave(n);
}

/* The request will be made for real: notes what the file is like before. */
void sl_note_real(struct note *n)
{
	if (!n)
		return;
	if (n->e.fd >= 0 && !(n->e.has & (SL_HAS_STAT | SL_HAS_NO_FILE)))
		ask(n);
	n->e.start = sl_ticks();
}

/* Ends the note: the request was answered with RESULT. */
void sl_note_end(struct note *n, const struct verdict *v, unsigned done, long result)
{
	const uint8_t *fs = v && done == SL_DONE_OWED ? v->fs : NULL;
	int fd;

	if (!n)
		return;
	fd = n->e.fd;
	n->e.took = sl_ticks() - n->e.start;
	n->e.done = (uint8_t)done;
	n->e.result = result > INT32_MAX ? INT32_MAX : (int32_t)result;
	if (v && v->kept != LATER)
		n->e.why = (uint8_t)v->kept;
	if (put(SL_CELL_EVENT, &n->e, n->e.has & SL_HAS_STAT ? &n->stat : NULL, n->text, fs)) {
		if (n->entry)
			note_told(n);
	} else if (fd >= 0 && fd < FDS_MAX) {
		STORE(sl_watched()->fd[fd].id, 0); /* what it is was not heard */
	}
	sl_leave(n);
}

/* A request that is left to the kernel asynchronously, or put off: its end is not seen. */
void sl_note_queued(unsigned kind, int fd, const struct verdict *v, int later)
{
	sl_note_end(NOTE(kind, fd, 0), v, later ? SL_DONE_OWED : SL_DONE_QUEUED, 0);
}

/* N bytes were written to FD. */
void sl_note_written(int fd, long n)
{
	if (n > 0 && fd >= 0 && fd < FDS_MAX && sl_active() && sl_recording())
		__atomic_fetch_add(&sl_watched()->fd[fd].bytes, (uint64_t)n, __ATOMIC_RELAXED);
}

/* FD is a new description. */
void sl_note_opened(int fd)
{
	if (fd >= 0 && fd < FDS_MAX && sl.levels && sl_recording()) {
		STORE(sl_watched()->fd[fd].id, 0);
		STORE(sl_watched()->fd[fd].bytes, 0);
	}
}

#ifdef SL_IO
void sl_tell(void)
{
	char *room = ROOM(SL_TEXT_MAX);

	forget(room);
	sl_leave(room);
}

uint64_t sl_millisecond(void) { return millisecond(); }

long sl_what_is(int fd, struct sl_stat *stat, uint32_t *hash) { return what_is(fd, stat, hash); }

/* N calls of KIND fell into PLACE of the histogram. Returns whether there was room to say so. */
int sl_note_count(struct ring *r, unsigned kind, unsigned place, uint64_t n)
{
	struct sl_event e = { .fd = -1, .kind = (uint8_t)kind, .flags = place, .bytes = n };

	e.has = SL_SEES_BYTES;
	return put_into(r, SL_CELL_COUNT, &e, NULL, NULL);
}

/* Makes sure that the recorder knows what the event's descriptor is. With several sessions nothing
 * is known: each has a threshold of its own, so not all of them hear the same. */
static void identify_slow(struct note *n)
{
	int fd = n->e.fd;
	struct fd_entry *d = sl.levels == 1 && fd >= 0 && fd < FDS_MAX ? &sl_watched()->fd[fd] : NULL;

	if (fd < 0 || n->e.has & SL_HAS_TEXT)
		return;
	if (d && n->hash && LOAD_RELAXED(d->id) == n->hash)
		return;
	if (n->e.kind != SL_KIND_CLOSE) {
		define(n, d);
		return;
	}
	/* It is closed, and what it was called nobody knows. */
	n->e.text = 0;
	n->e.has |= SL_HAS_TEXT;
	if (fd < FDS_MAX)
		STORE(sl_watched()->fd[fd].id, 0);
}

/* What the note says of its file stands where others are told by. */
static NOINLINE void tell_slow_caller(struct note *n, uint64_t caller)
{
	char *name = ROOM(LIBRARY_MAX);

	tell_caller(n, caller, name);
	sl_leave(name);
}

/* Records a call that is no request, and that was slow in one of the sessions at least. The caller
 * has filled in what it was, when, and of the file what it knows: stat and hash, or a text. N is
 * left. */
void sl_note_slow(struct note *n, uint64_t caller)
{
	int fd = n->e.fd;
	unsigned i;

	n->entry = NULL;
	n->e.tid = thread_id();
	n->e.uid = user(n->e.start);
	n->e.fs = 255;
	n->e.done = n->e.result < 0 ? SL_DONE_NOTHING : SL_DONE_REAL;
	n->e.caller = caller;
	if (caller)
		tell_slow_caller(n, caller);
	identify_slow(n);
	for (i = 0; i < sl.levels; i++) {
		struct ring *r = sl_io_at(i) ? sl_ring_of(i) : NULL;

		if (!r || n->e.took < LOAD(sl.level[i].page->slow))
			continue;
		if (put_into(r, SL_CELL_EVENT, &n->e, n->e.has & SL_HAS_STAT ? &n->stat : NULL,
			     n->text)) {
			if (n->entry)
				note_told(n);
			continue;
		}
		ADD(r->control->lost, 1);
		if (fd >= 0 && fd < FDS_MAX)
			STORE(sl_watched()->fd[fd].id, 0); /* what it is was not heard */
	}
	sl_leave(n);
}
#endif
