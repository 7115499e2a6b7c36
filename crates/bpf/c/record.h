/* What the trace programs hand over: one form for requests and for processes.
 *
 * Read by src/record.rs, field by field; the assertions below hold both sides to the same offsets.
 */
#ifndef SYNCLATER_RECORD_H
#define SYNCLATER_RECORD_H

#include "kernel.h"

/* The longest path that is handed over, less one name: the rest of a longer one is cut off. */
#define PATH_BYTES 4096
#define NAME_BYTES 256
#define ARGS_BYTES 1024
#define TAG_BYTES  16

enum type { A_REQUEST = 1, A_PROCESS = 2 };

enum kind {
	FSYNC = 1, FDATASYNC, SYNC, SYNCFS, MSYNC, RANGE, WRITE_SYNC, WRITE_DSYNC, WRITE_RWF_SYNC,
	WRITE_RWF_DSYNC, URING_SYNC, URING_RANGE, AIO, OTHER,
};

enum route { BY_CALL = 1, BY_RING, BY_AIO, BY_FILE_SYSTEM };

enum dirty { DIRTY_UNKNOWN, CLEAN, DIRTY };

enum mark {
	HAS_FD = 1, HAS_FILE = 2, HAS_END = 4, HAS_DURATION = 8, PATH_CUT = 16, DELETED = 32,
};

struct record {
	__u64 start;    /* CLOCK_BOOTTIME, ns */
	__u64 duration; /* ns */
	__u64 inode;
	__s64 result;   /* of a process: bytes of its arguments, which follow the path */
	__u8 type, kind, dirty, marks;
	__u8 route, unused[3];
	__u32 path_bytes;
	__u32 pid, tid, uid;
	__s32 fd;
	__u32 flags;
	__u32 device;   /* the kernel's form: major << 20 | minor */
	__u32 mount;    /* the mount's id, as in mountinfo */
	char comm[TAG_BYTES];
	char fs[TAG_BYTES];
	/* Names, the file's own first, each with a NUL behind it. */
	char path[PATH_BYTES];
};

#define HEAD_BYTES 104
_Static_assert(__builtin_offsetof(struct record, type) == 32, "src/record.rs knows it there");
_Static_assert(__builtin_offsetof(struct record, path_bytes) == 40, "as above");
_Static_assert(__builtin_offsetof(struct record, comm) == 72, "as above");
_Static_assert(__builtin_offsetof(struct record, path) == HEAD_BYTES, "as above");

#endif
