/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What a recording adds to the contract between the supervisor and the shim (core/page.h): one ring
 * of events a process, and one histogram of its faster calls. Victims write both; what stands here
 * is hostile input for the recorder. src/rings.rs is the mirror; the witness test holds both to the
 * same layout. A change bumps SL_VERSION.
 */
#ifndef SYNCLATER_RINGS_H
#define SYNCLATER_RINGS_H

#include "core/page.h"

#define SL_RINGS_MAGIC 0x676e697274616c73ull /* "slatring" */

/* Events on their way to the recorder. One ring belongs to one process, whose threads all write it:
 * a writer takes cells by moving `head` on, fills them, and publishes its first cell last, by a
 * state that names the cell's place. The recorder reads, empties the states and moves `tail` on. A
 * writer that finds no room counts a loss; it never waits. */

/* sl_cell.state: type, cells of the record, low bits of the place. */
#define SL_CELL_EVENT  1u /* struct sl_event, then a SL_CELL_STAT and SL_CELL_TEXT as it says */
#define SL_CELL_STAT   2u /* struct sl_stat */
#define SL_CELL_TEXT   3u /* SL_CELL_BYTES of text */
#define SL_CELL_CALLER 4u /* struct sl_event: `caller` lies at `start` in the file of its text */
#define SL_CELL_PROCESS 5u /* struct sl_event; its text: executable, NUL, command line */
#define SL_CELL_COUNT  6u /* struct sl_event: `bytes` calls of `kind` fell into place `flags` of the
			     * histogram, made by the program that this process was before */
#define SL_CELL_BYTES  60u
#define SL_CELL_STATE(type, cells, place) \
	((type) | (uint32_t)(cells) << 8 | (uint32_t)((place) & 0xffffu) << 16)

/* sl_event.done */
#define SL_DONE_REAL    0u
#define SL_DONE_OWED    1u
#define SL_DONE_NOTHING 2u /* answered with an error */
#define SL_DONE_QUEUED  3u /* left to the kernel, asynchronously: its end is not seen */

/* sl_event.has */
#define SL_HAS_STAT    1u
#define SL_HAS_TEXT    2u /* the path of what `fd` is from now on */
#define SL_HAS_BYTES   4u
#define SL_HAS_NO_FILE 8u /* what `fd` is could not be told */

#define SL_RING_MAX   512u
#define SL_RINGS_DATA 69632u /* where ring 0 begins: its histogram, its cells; the next follows */

#define SL_HIST_KINDS  5u  /* from SL_KIND_READ */
#define SL_HIST_PLACES 44u /* place p: below 2^p ns, and at least half of that */
#define SL_HIST_BYTES  8192u

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"

struct sl_cell {
	uint32_t state;
	uint8_t bytes[SL_CELL_BYTES];
};

struct sl_event {
	uint32_t state;
	uint32_t tid;
	uint64_t start; /* ticks */
	uint64_t took;  /* ticks */
	uint64_t caller;
	uint64_t bytes; /* written to the file before */
	int32_t fd;     /* or -1 */
	uint32_t uid;
	uint32_t flags;
	int32_t result; /* or -errno */
	uint8_t kind;
	uint8_t done;
	uint8_t why; /* SL_KEPT_*, where it was made for real */
	uint8_t fs;  /* index, SL_ALL_FS, or 255: not known */
	uint16_t text;
	uint16_t has;
};

struct sl_stat {
	uint32_t state;
	uint32_t mode;
	uint64_t inode;
	uint64_t mount; /* mount id as in mountinfo, 0 unknown */
	uint64_t dev;   /* major << 32 | minor */
	uint64_t mtime_ns;
	uint64_t ctime_ns;
	uint64_t size;
	uint64_t reserved;
};

struct sl_ring {
	uint32_t pid; /* as the victim sees it; 0 = free; freed by the recorder */
	uint32_t backed; /* 1: there is memory behind the histogram, and behind what was written */
	uint64_t pid_ns;
	uint64_t head; /* cells ever taken; writer: victims */
	uint64_t lost; /* events that found no room; writer: victims */
	uint64_t reserved_line[4];
	uint64_t tail; /* cells ever read; writer: recorder, which believes its own copy */
	uint64_t reserved_tail[7];
};

/* How many calls took how long, of those that were faster than the threshold. Added to by victims,
 * each thread in the shard that it has got (shard_number); taken (exchanged with 0) by the
 * recorder once a second, and when the process is gone. */
struct sl_hist_shard {
	uint32_t count[SL_HIST_KINDS][SL_HIST_PLACES];
	uint32_t reserved[4];
};

struct sl_hist {
	struct sl_hist_shard shard[SL_SHARDS];
	uint8_t reserved[1024];
};

struct sl_rings {
	uint64_t magic;
	uint32_t version;
	uint32_t reserved_head;
	uint32_t count;      /* rings that were ever claimed: none behind them is in use */
	uint32_t bell;       /* futex of the recorder: moved on each quarter of a ring, and where
			      * few are free */
	uint64_t reserved[5];
	struct sl_ring ring[SL_RING_MAX];
};

#pragma GCC diagnostic pop

SL_STATIC_ASSERT(sizeof(struct sl_cell) == 64, "sl_cell");
SL_STATIC_ASSERT(sizeof(struct sl_event) == 64, "sl_event");
SL_STATIC_ASSERT(sizeof(struct sl_stat) == 64, "sl_stat");
SL_STATIC_ASSERT(sizeof(struct sl_ring) == 128, "sl_ring");
SL_STATIC_ASSERT(sizeof(struct sl_hist_shard) == 896, "sl_hist_shard");
SL_STATIC_ASSERT(sizeof(struct sl_hist) == SL_HIST_BYTES, "sl_hist");
SL_STATIC_ASSERT(sizeof(struct sl_rings) <= SL_RINGS_DATA, "sl_rings");

#endif
