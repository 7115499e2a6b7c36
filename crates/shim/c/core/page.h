/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The contract between the supervisor and the shim: two shared mappings, fixed-width fields only.
 *
 *   struct sl_page   written by the supervisor (and its keeper) alone; victims map it read-only.
 *   struct sl_slots  written by victims, one for each user; what stands here is hostile input for
 *                    the supervisor, which loads each word once, checks its range, and follows none
 *                    as a pointer.
 *   struct sl_rings  while a recording is made: see watch/rings.h.
 *
 * src/page.rs is the mirror. The asserts below and the witness test hold both to the same layout.
 * A change of layout or meaning bumps SL_VERSION; a shim that meets another version makes every
 * call for real, and the supervisor of an unknown version is told so by `ps`.
 *
 * Times are "ticks" of the lease clock: the time stamp counter where it is invariant, otherwise
 * nanoseconds of CLOCK_REALTIME. Neither is shifted by a time namespace (CLOCK_MONOTONIC is).
 */
#ifndef SYNCLATER_PAGE_H
#define SYNCLATER_PAGE_H

#include <stdint.h>

#define SL_PAGE_MAGIC  0x6567617074616c73ull /* "slatpage", little endian */
#define SL_SLOTS_MAGIC 0x746f6c7374616c73ull /* "slatslot" */
#define SL_VERSION     10u

#define SL_FS_MAX    64u
#define SL_SYNC_WANTS 1u
#define SL_SYNC_LATER 2u
#define SL_ALL_FS    64u  /* the row of debt that sync() owes on everything */
#define SL_NO_FS     255u /* an event's or verdict's file system: not known, or none owes */
#define SL_NAME_MAX  512u /* power of two: an open-addressing table */
#define SL_PROBE_MAX 16u
#define SL_CLASS_MAX 16u
#define SL_RULE_MAX  16384u
#define SL_SLOT_MAX  512u /* slot 0 serves every process that found no other */
#define SL_SHARDS    8u
#define SL_KIN_MAX   4096u
/* Places of `took`: eight to a doubling, from 2^SL_TOOK_FIRST ticks on; what is shorter, or longer
 * than all of them, falls into the first, or the last. */
#define SL_TOOK_FIRST  10u
#define SL_TOOK_PLACES 240u
#define SL_KEPT_MAX  16u

/* The upper half of the cookie of sl_page.net, where an argument has 64 bits. */
#define SL_COOKIE 0x73796e6300000000ull

/* sl_page.clock */
#define SL_CLOCK_TSC      1u
#define SL_CLOCK_REALTIME 2u

/* sl_fs.state */
#define SL_FS_REAL 0u /* not held, or about to be let go of: every call is real */
#define SL_FS_OWES 1u /* held, and in the ledger on disk: requests may be answered later */

/* sl_name.fs, where it is no index: what to do about a number that no held file system has. Such a
 * number may be another file system's by now, so none of these lets a request be put off unless the
 * descriptor itself says the same. */
#define SL_NAME_REAL    256u /* not on the tested list when it was asked about */
#define SL_NAME_MEMORY  257u /* tmpfs: nothing to make durable, where fstatfs says so too */
#define SL_NAME_UNKNOWN 258u /* the file system could not be told */
#define SL_NAME_AWAY    259u /* mounted in another mount namespace alone */
#define SL_NAME_GONE    UINT64_MAX /* sl_name.dev: nothing stands here any more */

/* Why a request was kept real: index into sl_slot.kept. */
#define SL_KEPT_NOW      0u  /* the dial is at `now`, or the session is over */
#define SL_KEPT_RULE     1u  /* a rule says `now`, or no rule matches */
#define SL_KEPT_LEASE    2u  /* the lease ran out: the supervisor's heartbeat is stale */
#define SL_KEPT_LEDGER   3u  /* the file system is not in the ledger yet */
#define SL_KEPT_FS       4u  /* the file system is not on the tested list */
#define SL_KEPT_BLOCK    5u  /* a block device, or another special file */
#define SL_KEPT_UNKNOWN  6u  /* the file system could not be told */
#define SL_KEPT_SYNC_ALL 7u  /* sync() where a file system must stay real */
#define SL_KEPT_OSYNC    8u  /* O_SYNC that could not be taken off */
#define SL_KEPT_AIO      9u  /* asynchronous request that this libc gives no way to put off */
#define SL_KEPT_AWAY     10u /* the file system is mounted in another mount namespace alone */

/* The signal numbers (F_SETSIG) that mark a descriptor which lost O_DSYNC, or O_SYNC. */
#define SL_MARK_DSYNC 32
#define SL_MARK_SYNC  33

/* sl_slot.flags */
#define SL_SLOT_URING      1u /* set up an io_uring by a call that was seen */
#define SL_SLOT_MARK_LOST  2u /* took the signal number that marks a stripped descriptor */
#define SL_SLOT_OSYNC_KEPT 4u /* holds O_SYNC descriptors that were not stripped */
#define SL_SLOT_RESTRICTED 8u /* restricts its own calls: every request is real from then on */

/* sl_slot.umount */
#define SL_UMOUNT_NONE  0u
#define SL_UMOUNT_ASKED 1u /* written by the shim */
#define SL_UMOUNT_READY 2u /* written by the supervisor: settled, descriptor let go */
#define SL_UMOUNT_OVER  3u /* written by the shim: the call was made */

/* Kinds of request (sl_event.kind). */
#define SL_KIND_FSYNC       1u
#define SL_KIND_FDATASYNC   2u
#define SL_KIND_SYNC        3u
#define SL_KIND_SYNCFS      4u
#define SL_KIND_MSYNC       5u
#define SL_KIND_RANGE       6u
#define SL_KIND_OSYNC       7u
#define SL_KIND_ODSYNC      8u
#define SL_KIND_RWF_SYNC    9u
#define SL_KIND_RWF_DSYNC   10u
#define SL_KIND_AIO_FSYNC   11u
#define SL_KIND_LIBAIO      12u
#define SL_KIND_URING       13u
#define SL_KIND_URING_RANGE 14u
/* No requests: calls of libsynclater-io.so, of sessions that ask for them. */
#define SL_KIND_READ   15u
#define SL_KIND_WRITE  16u
#define SL_KIND_OPEN   17u
#define SL_KIND_RENAME 18u
#define SL_KIND_CLOSE  19u

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"

/* One superblock. Writer: supervisor. Reader: shim. */
struct sl_fs {
	uint32_t state;
	uint32_t held; /* moved on each time that it is held: earlier write errors are not ours */
	uint64_t dev;  /* for the recorder: as mountinfo shows it */
};

/* What a device number means, at hash(dev) or up to SL_PROBE_MAX places after it. dev 0 = empty.
 * An index stands here as long as the supervisor holds a descriptor of that superblock, so the
 * superblock's own number cannot be another one's. A subvolume's can (btrfs gives it away when the
 * subvolume is deleted, whoever has it open): it counts on one mount only, which can not. */
struct sl_name {
	uint64_t dev; /* major << 32 | minor, as stat and /proc/PID/maps show it */
	uint64_t mount; /* 0: on every mount; else the one that it counts on (statx) */
	uint32_t fs;   /* index, or SL_NAME_* */
	uint32_t turn; /* odd while it is changed */
};

/* One rule. Offsets are from the start of the page; 0 = matches anything. First match wins. */
struct sl_rule {
	uint32_t exe;        /* glob, NUL-terminated: base name, or full path if it has a '/' */
	uint32_t path;       /* glob over the file's absolute path */
	uint32_t users;      /* array of uint32_t uids, ascending */
	uint32_t user_count; /* with users != 0 */
	uint32_t class_;
	uint32_t reserved;
};

struct sl_page {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* bytes of the whole page file, rules included */
	/* Ticks until which answers may be late; moved on by the supervisor's heartbeat. A value
	 * more than lease_span ahead is not believed (the clock jumped): the call is real. */
	uint64_t lease_until;
	uint64_t lease_span;
	uint32_t clock;  /* SL_CLOCK_*; constant */
	uint32_t relax;  /* 0: every call is real. Writer: supervisor, keeper */
	uint32_t error;  /* errno of a write-back error seen, or 0; never goes back to 0 */
	uint32_t several; /* 1: more than one file system has owed: requests are counted for each */
	uint32_t now_mask; /* bit c: class c is at `now` */
	uint32_t rule_count;
	uint32_t record;     /* not 0: events are recorded; another number: forget what you told */
	uint32_t rule_needs; /* SL_NEEDS_*: what any rule looks at */
	uint32_t slots_size; /* bytes of the slots file */
	uint32_t filters;    /* Seccomp_filters that a process of the session has at its start */
	uint32_t entered;    /* 1: the session has an entry in its ledger. Writer: supervisor, keeper */
	uint32_t sync_ok;    /* 1: sync() may be put off (every file system in sight owes) */
	/* Abstract name of the socket at which a process that changed its user gets the slots. */
	uint8_t socket[32];
	uint32_t rules_at;   /* offset of the rules */
	uint32_t ring_cells; /* cells of one ring, a power of two; 0 without a recording */
	struct sl_fs fs[SL_FS_MAX];
	struct sl_name names[SL_NAME_MAX];
	/* Where `record` is set: ticks from which on a call that is no request is an event (watch/io.c).
	 * 0: no such calls are timed. */
	uint64_t slow;
	uint32_t scale; /* nanoseconds of a tick, times 2^20 */
	/* Not 0: a seccomp filter of the session looks at sync requests too (sl_cookie). */
	uint32_t net;
	/* errno of a write-back error that somebody was told who settles, or 0: `error` is what the
	 * session's programs are told. Writer: whoever settles */
	uint32_t told;
	/* The same that somebody was told who settled for himself where the session owes, or 0. Writer:
	 * he */
	uint32_t heard;
};

#define SL_NEEDS_EXE  1u
#define SL_NEEDS_USER 2u
#define SL_NEEDS_PATH 4u

/* One cache line of counters; a thread uses the one that it has got (shard_number). */
struct sl_shard {
	uint64_t requests; /* every covered request that was made */
	uint64_t real;     /* made for real */
	uint64_t failed;   /* answered with an error, nothing put off */
	uint64_t hints; /* sync_file_range: write-back hints, not durability; not in `requests` */
	uint64_t ticks; /* spent in the real ones, lease clock */
	uint64_t hints_real;
	uint64_t timed; /* those of `real` whose time is in `ticks` */
	uint64_t elsewhere; /* those that another process made: the net's */
};

/* One process. Claimed by compare-and-swap of `pid` from 0; freed by the supervisor when it died.
 */
struct sl_slot {
	uint32_t pid; /* as the victim sees it; SL_SLOT_MAX - 1 processes at a time */
	uint32_t flags;
	uint64_t pid_ns;    /* inode of its pid namespace, 0 unknown */
	uint64_t ask_dev; /* a number that is not in the page; cleared by the supervisor */
	uint64_t umount_dev; /* the number of what is about to be unmounted */
	uint32_t umount; /* SL_UMOUNT_*; futex */
	uint32_t uid;
	uint64_t lost; /* events that found no ring at all */
	int32_t ask_fd; /* a descriptor with that number, or -1 */
	uint32_t reserved_ask;
	uint64_t umount_mount; /* its mount, as mountinfo shows it; 0: not known */
	uint32_t kept[SL_KEPT_MAX];
	struct sl_shard shard[SL_SHARDS];
};

struct sl_slots {
	uint64_t magic;
	uint32_t version;
	uint32_t size;
	uint32_t doorbell;  /* futex: moved on at each event that the supervisor must look at */
	uint32_t reserved_look;
	/* Not 0: a descriptor may bear a mark. 1: a member with these slots has taken the O_SYNC of
	 * one off. 2: another user is in the session, who says that in slots of his own; written by
	 * the supervisor before he can join. */
	uint32_t stripped;
	/* SL_SYNC_WANTS: sync() was asked for and wants every file system in the ledger.
	 * SL_SYNC_LATER: one was put off, and it was not looked yet who writes where. */
	uint32_t want_sync;
	/* Bit i (64: sync): a request was put off there, settled meanwhile or not. Set by the shim
	 * before the debt is; the supervisor clears one when another superblock gets its index. */
	uint32_t owed[3];
	/* Not 0: a request was kept real by a session inside, which was asked before. */
	uint32_t unasked;
	uint64_t in_memory; /* requests put off that owe nothing: of what lies in memory */
	uint64_t reserved;
	/* Ticks of the oldest request that is owed, by file system and class; 0 = none. Set by the
	 * shim from 0 only; taken (exchanged with 0) by the supervisor before it settles. */
	uint64_t debt[SL_FS_MAX + 1][SL_CLASS_MAX];
	uint64_t fs_requests[SL_FS_MAX]; /* counted with sl_page.several */
	struct sl_slot slot[SL_SLOT_MAX];
	/* By file system: how many syncs that were made for real took how long (SL_TOOK_FIRST). */
	uint32_t took[SL_FS_MAX][SL_TOOK_PLACES];
	/* Bit i: rule i has decided about a process or a request. */
	uint32_t matched[SL_RULE_MAX / 32];
	/* How many calls were to put a filter on all threads of a process (seccomp, TSYNC), by kin: those
	 * that were forked from the same process, without execution between, by a number that they
	 * share (strangers seldom have the same). Only grows, in front of each such call: a child whose
	 * memory knows less of them may have such a filter. */
	uint32_t tsyncs[SL_KIN_MAX];
};

#pragma GCC diagnostic pop

#define SL_STATIC_ASSERT(c, m) _Static_assert(c, m)
SL_STATIC_ASSERT(sizeof(struct sl_fs) == 16, "sl_fs");
SL_STATIC_ASSERT(sizeof(struct sl_name) == 24, "sl_name");
SL_STATIC_ASSERT(sizeof(struct sl_rule) == 24, "sl_rule");
SL_STATIC_ASSERT(sizeof(struct sl_shard) == 64, "sl_shard");
SL_STATIC_ASSERT(sizeof(struct sl_slot) == 128 + 64 * SL_SHARDS, "sl_slot");
SL_STATIC_ASSERT(sizeof(struct sl_page) == 144 + 16 * SL_FS_MAX + 24 * SL_NAME_MAX, "sl_page");
SL_STATIC_ASSERT(sizeof(struct sl_slots) == 64 + 8 * (SL_FS_MAX + 1) * SL_CLASS_MAX +
						    8 * SL_FS_MAX +
						    4 * SL_FS_MAX * SL_TOOK_PLACES +
						    SL_RULE_MAX / 8 + 4 * SL_KIN_MAX +
						    sizeof(struct sl_slot) * SL_SLOT_MAX,
		 "sl_slots");

#endif
