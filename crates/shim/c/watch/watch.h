/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Recording: what the library tells of requests, and with SL_IO of other calls. Used by the rooms
 * above; core/ knows one function of it.
 */
#ifndef SYNCLATER_WATCH_H
#define SYNCLATER_WATCH_H

#include "core/core.h"
#include "watch/rings.h"

#pragma GCC visibility push(hidden)

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

/* What a recording keeps in each process, behind `mine`: wiped in a forked child with it. */
struct watched {
	struct ring ring[LEVELS_MAX];
	uint64_t user_at; /* ticks */
	uint32_t user, told, tid_place;
	uint32_t introduced; /* the recorder has heard who we are */
	uint64_t caller[CALLERS_MAX];
	struct fd_entry fd[FDS_MAX];
#ifdef SL_IO
	struct io_fd io[FDS_MAX];
#endif
};
SL_STATIC_ASSERT(sizeof(struct watched) <= SL_WATCH_BYTES, "what is kept behind mine");

static ALWAYS_INLINE struct watched *sl_watched(void)
{
	return (struct watched *)(void *)((char *)sl_mine + SL_MINE_BYTES);
}

/* address.c */
/* struct procmap_query of linux/fs.h (Linux 6.11). */
struct map_query {
	uint64_t size, flags, addr, start, end, vma_flags, page_size, offset, inode;
	uint32_t dev_major, dev_minor, name_size, build_id_size;
	uint64_t name, build_id;
};
long sl_map_query(long maps, struct map_query *q, uint64_t address, uint64_t flags, char *name,
		  uint32_t size);
long sl_map_at(uint64_t address, char *name, uint32_t size, struct map_query *q);
long sl_file_at(uint64_t address, char *name, uint32_t size, uint64_t *offset);

/* noted.c */
unsigned sl_done_as(const struct verdict *v);

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
struct note *sl_note(struct note *n, unsigned kind, int fd, uint64_t caller);
void sl_note_real(struct note *n);
void sl_note_drop(struct note *n);
void sl_note_end(struct note *n, const struct verdict *v, unsigned done, long result);
void sl_note_queued(unsigned kind, int fd, const struct verdict *v, int later);
void sl_note_written(int fd, long n);
void sl_note_opened(int fd);
void sl_forget_recording(void);

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

#pragma GCC visibility pop

#endif
