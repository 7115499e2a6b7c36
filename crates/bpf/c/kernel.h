/* The parts of the kernel that the trace programs look at.
 *
 * Each structure names only the members that are used; the loader puts in the offsets of the
 * running kernel (preserve_access_index: CO-RE). A name behind three underscores is another
 * kernel's form of the same structure. Constants are those of the kernel's own headers.
 */
#ifndef SYNCLATER_KERNEL_H
#define SYNCLATER_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_F_NO_PREALLOC = 1, BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
enum { BPF_RB_NO_WAKEUP = 1, BPF_RB_FORCE_WAKEUP = 2, BPF_RB_AVAIL_DATA = 0 };

#define PF_IO_WORKER 0x10
#define PF_KTHREAD   0x200000
#define TS_COMPAT    2

#define O_DSYNC_    010000
#define O_SYNC_BIT_ 04000000
#define FMODE_PATH_ 040000
#define RWF_DSYNC_  2
#define RWF_SYNC_   4
#define MS_ASYNC_   1
#define MS_SYNC_    4
#define S_IFMT_     0170000
#define S_IFREG_    0100000
#define S_IFBLK_    0060000
#define S_IFDIR_    0040000

#define EIO_    5
#define EEXIST_ 17

#define XFS_MAGIC   0x58465342
#define BTRFS_MAGIC 0x9123683e
#define EXT4_MAGIC  0xef53

#define READ __attribute__((preserve_access_index))

typedef struct { int counter; } atomic_t;

struct qstr { const unsigned char *name; } READ;
struct hlist_bl_node { struct hlist_bl_node *next, **pprev; } READ;
struct dentry {
	struct hlist_bl_node d_hash;
	struct dentry *d_parent;
	struct qstr d_name;
} READ;
struct vfsmount { struct dentry *mnt_root; } READ;
struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	int mnt_id;
} READ;
struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
} READ;
struct fs_struct { struct path root; } READ;

struct file_system_type { const char *name; } READ;
struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
	struct file_system_type *s_type;
	void *s_fs_info;
} READ;
struct xarray { __u32 xa_flags; } READ;
struct address_space { struct xarray i_pages; } READ;
struct inode {
	__u16 i_mode;
	struct super_block *i_sb;
	struct address_space *i_mapping;
	unsigned long i_ino;
} READ;
enum inode_state_flags_t { I_DIRTY_SYNC = 0, I_DIRTY_DATASYNC = 0 };
/* From 6.18 on, where the marks have names. */
struct inode___named { enum inode_state_flags_t i_state; } READ;
struct file {
	__u32 f_mode;
	__u32 f_flags;
	struct path f_path;
	struct inode *f_inode;
	struct address_space *f_mapping;
} READ;
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} READ;
struct files_struct { struct fdtable *fdt; } READ;

struct vm_area_struct { struct file *vm_file; } READ;
struct mm_struct {
	unsigned long arg_start, arg_end;
	struct file *exe_file;
} READ;
struct kuid { __u32 val; } READ;
typedef struct kuid kuid_t;
struct cred { kuid_t euid; } READ;
struct upid { int nr; } READ;
struct pid {
	unsigned int level;
	struct upid numbers[1];
} READ;
struct thread_info { __u32 status; } READ;
struct io_uring_task;
struct signal_struct { atomic_t live; } READ;
struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	int pid, tgid;
	struct mm_struct *mm;
	struct files_struct *files;
	struct fs_struct *fs;
	const struct cred *cred;
	struct pid *thread_pid;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	struct io_uring_task *io_uring;
	__u64 start_boottime;
	__u64 self_exec_id;
} READ;

/* --- io_uring --------------------------------------------------------------------------------- */

struct io_cqe { int fd; } READ;
struct io_rsrc_node { unsigned long file_ptr; } READ;
struct io_rsrc_data {
	unsigned int nr;
	struct io_rsrc_node **nodes;
} READ;
struct io_file_table { struct io_rsrc_data data; } READ;
struct io_ring_ctx { struct io_file_table file_table; } READ;
struct io_kiocb {
	struct file *file;
	__u8 opcode;
	__u64 flags;
	struct io_cqe cqe;
	struct io_ring_ctx *ctx;
} READ;
struct io_sync { int flags; } READ;
struct io_rw { __u32 flags; } READ;
struct io_uring_cqe { __s32 res; } READ;

#define REQ_FIXED_FILE 1
#define REQ_SILENT     64 /* IOSQE_CQE_SKIP_SUCCESS: no completion unless it fails */
enum {
	OP_WRITEV = 2,
	OP_FSYNC = 3,
	OP_WRITE_FIXED = 5,
	OP_SYNC_FILE_RANGE = 8,
	OP_WRITE = 23,
};
enum io_uring_op { IORING_OP_WRITEV_FIXED = 1000 };
#define FSYNC_DATASYNC 1

/* struct iocb of linux/aio_abi.h: part of the system call, the same on every kernel. */
struct iocb {
	__u64 data;
	__u32 key_and_flags[2]; /* little endian */
	__u16 opcode;
	__s16 priority;
	__u32 fd;
	__u64 buffer, bytes, offset, reserved;
	__u32 flags, resfd;
};
enum { AIO_PWRITE = 1, AIO_FSYNC = 2, AIO_FDSYNC = 3, AIO_PWRITEV = 8 };

/* --- File systems ----------------------------------------------------------------------------- */

struct journal_s { __u32 j_commit_sequence; } READ;
struct ext4_sb_info { struct journal_s *s_journal; } READ;
struct ext4_inode_info {
	struct inode vfs_inode;
	__u32 i_sync_tid, i_datasync_tid;
} READ;

struct xfs_inode_log_item {
	__u64 ili_commit_seq, ili_datasync_seq;
	__u32 ili_fsync_fields;
} READ;
struct xfs_inode {
	struct xfs_inode_log_item *i_itemp;
	atomic_t i_pincount;
	struct inode i_vnode;
} READ;
#define XFS_TIMESTAMP 0x4000

struct btrfs_fs_info {
	__u64 generation;
	__u64 last_trans_committed;
} READ;
struct btrfs_root {
	struct btrfs_fs_info *fs_info;
	int last_log_commit;
} READ;
struct btrfs_inode {
	struct btrfs_root *root;
	__u64 last_trans, logged_trans;
	int last_sub_trans, last_log_commit;
	struct inode vfs_inode;
} READ;

enum bpf_func_id { BPF_FUNC_find_vma = 180 };

#include "numbers.h" /* made of calls.def: NR_*, NR32_* */

/* --- Registers at the system call ------------------------------------------------------------- */

#ifdef __TARGET_ARCH_x86
struct pt_regs { unsigned long bp, bx, di, dx, r9, orig_ax; } READ;
#define CALL_OF(r)  BPF_CORE_READ(r, orig_ax)
#define FIRST_OF(r) BPF_CORE_READ(r, di)
#define THIRD_OF(r) BPF_CORE_READ(r, dx)
#define SIXTH_OF(r) BPF_CORE_READ(r, r9)
/* Of 32-bit programs (NR32_*), which the trace points of single system calls do not see. */
#define FIRST32_OF(r) ((int)BPF_CORE_READ(r, bx))
#define SIXTH32_OF(r) ((__u32)BPF_CORE_READ(r, bp))
#else
struct user_pt_regs { __u64 regs[31]; } READ;
struct pt_regs { __u64 regs[31]; __s32 syscallno; } READ;
#define CALL_OF(r)  BPF_CORE_READ(r, syscallno)
#define FIRST_OF(r) BPF_CORE_READ(r, regs[0])
#define THIRD_OF(r) BPF_CORE_READ(r, regs[2])
#define SIXTH_OF(r) BPF_CORE_READ(r, regs[5])
#endif

/* What a trace point of one system call hands over. */
struct call_enter {
	__u64 common;
	__u64 number;
	__u64 args[6];
};
struct call_leave {
	__u64 common;
	__u64 number;
	__s64 ret;
};

#endif
