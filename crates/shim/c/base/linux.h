/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * What the kernel's headers say, as far as the shim needs it: it is compiled without any, for
 * programs of every libc. Errors, flags of open(2), types of files, mmap(2), statx(2).
 */
#ifndef SYNCLATER_LINUX_H
#define SYNCLATER_LINUX_H

#include <stdint.h>

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

/* fcntl: the signal of an open file, in which routes/osync.c keeps its mark. */
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
#define MAP_SHARED_ANON_  0x21

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
_Static_assert(sizeof(struct statx_answer) == 256, "statx");
#define STATX_TYPE_       0x1u
#define STATX_NLINK_      0x4u
#define STATX_UID_        0x8u
#define STATX_INO_        0x100u
#define STATX_MNT_ID_     0x1000u
#define STATX_ANY_MNT_ID_ 0x5000u /* or a unique one, Linux 6.8, which is told in its place */

#endif
