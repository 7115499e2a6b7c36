/* What reaches a file system by a way that is not followed from its beginning, and processes that
 * begin and end.
 */

/* The system call in progress, as far as it matters here. */
struct call {
	__u8 kind;  /* of a 32-bit program's sync; 0: not such a call */
	bool named; /* it names the file that it writes to or syncs */
	bool late;  /* it began before the trace programs were there */
	__s32 fd;
	__u32 flags;
};

#ifdef __TARGET_ARCH_x86
INLINE void look_at_small_call(struct pt_regs *regs, struct call *c)
{
	__u32 number = (__u32)CALL_OF(regs);

	c->fd = FIRST32_OF(regs);
	c->named = 1;
	switch (number) {
	case NR32_fsync:
		c->kind = FSYNC;
		break;
	case NR32_fdatasync:
		c->kind = FDATASYNC;
		break;
	case NR32_msync:
		c->kind = MSYNC;
		c->named = 0;
		break;
	case NR32_pwritev2:
		c->flags = SIXTH32_OF(regs);
		break;
	case NR32_write:
	case NR32_pwrite64:
	case NR32_writev:
	case NR32_pwritev:
	case NR32_sendfile:
	case NR32_sendfile64:
	case NR32_fallocate:
		break;
	default:
		c->named = 0;
	}
}
#endif

INLINE void look_at_call(struct task_struct *task, struct call *c)
{
	struct pt_regs *regs = (void *)bpf_task_pt_regs(task);

#ifdef __TARGET_ARCH_x86
	if (task->thread_info.status & TS_COMPAT) {
		look_at_small_call(regs, c);
		return;
	}
#endif
	c->fd = (int)FIRST_OF(regs);
	c->named = 1;
	switch (CALL_OF(regs)) {
	case NR_fsync:
	case NR_fdatasync:
	case NR_msync:
		c->late = 1;
		break;
	case NR_pwritev2:
		c->flags = (__u32)SIXTH_OF(regs);
		break;
	case NR_splice:
	case NR_copy_file_range:
		c->fd = (int)THIRD_OF(regs);
		break;
	case NR_write:
	case NR_pwrite64:
	case NR_writev:
	case NR_pwritev:
	case NR_sendfile:
	case NR_fallocate:
		break;
	default:
		c->named = 0;
	}
}

/* Of a thread of a program, outside a request that is known. Returns 0 where it is part of one. */
INLINE __u8 kind_in_call(struct task_struct *task, struct file **file, struct inode *inode,
			 struct call *c)
{
	struct file *named;
	__u8 kind;

	look_at_call(task, c);
	if (c->late)
		return 0;
	/* A ring's work may be done at the end of any call of its owner. */
	if (set.follows_uring && !c->named && !c->kind && task->io_uring)
		return 0;
	named = c->named ? file_of(c->fd) : 0;
	if (named && inode_of(named) != inode)
		named = 0;
	if (!named)
		c->named = 0;
	if (!*file)
		*file = named;
	if (c->kind)
		return c->kind;
	kind = kind_of_write(c->flags, *file ? GET(file, *file, f_flags) : 0);
	return kind ? kind : OTHER;
}

/* A sync of `inode` that no slot knows of; `file` may be 0. Returns the slot it is noted in. */
INLINE struct slot *begin_in_fs(struct file *file, struct inode *inode, int data_only)
{
	struct task_struct *task = current_task();
	struct call c = {};
	struct slot *slot;
	__u8 kind;

	if (set.by_device && !device_wanted(device_of(inode)))
		return 0;
	if (task->flags & PF_IO_WORKER)
		kind = set.follows_uring ? 0 : URING_SYNC;
	else if (task->flags & PF_KTHREAD)
		kind = OTHER;
	else
		kind = kind_in_call(task, &file, inode, &c);
	slot = kind ? begin(kind, BY_FILE_SYSTEM, c.flags, file) : 0;
	if (!slot)
		return 0;
	if (!file)
		describe_inode(&slot->record, inode);
	if (c.named) {
		slot->record.fd = c.fd;
		slot->record.marks |= HAS_FD;
	}
	if (kind < WRITE_SYNC || kind > WRITE_RWF_DSYNC)
		slot->record.dirty = dirty_of(NUMBER(inode), data_only, 0);
	return slot;
}

/* Whether the sync is part of a request that is known; what was not known of it is noted. */
INLINE bool is_part(struct inode *inode, int data_only)
{
	struct slot *slot = slot_in_use();

	if (!slot || slot->doing == A_FILE_SYNC)
		return 0;
	if (slot->doing == A_CALL && slot->record.dirty == DIRTY_UNKNOWN)
		slot->record.dirty = dirty_of(NUMBER(inode), data_only, 0);
	return 1;
}

SEC("raw_tp")
int ext4_enter(__u64 *args)
{
	struct file *file = (void *)args[0];
	struct inode *inode = inode_of(file);
	struct slot *slot;

	if (is_part(inode, (int)args[1]))
		return 0;
	slot = begin_in_fs(file, inode, (int)args[1]);
	if (slot)
		slot->doing = A_FILE_SYNC;
	return 0;
}

SEC("raw_tp")
int ext4_leave(__u64 *args)
{
	struct slot *slot = slot_in_use();

	if (slot && slot->doing == A_FILE_SYNC)
		end(slot, (int)args[1]);
	return 0;
}

/* Where the end is not seen. */
INLINE void happened(struct file *file, struct inode *inode, int data_only)
{
	struct slot *slot;

	if (is_part(inode, data_only))
		return;
	slot = begin_in_fs(file, inode, data_only);
	if (slot)
		hand_over_record(&slot->record);
}

SEC("raw_tp")
int btrfs_sync(__u64 *args)
{
	struct file *file = (void *)args[0];

	happened(file, inode_of(file), (int)args[1]);
	return 0;
}

SEC("raw_tp")
int xfs_sync(__u64 *args)
{
	struct inode *inode = (void *)args[0] + bpf_core_field_offset(struct xfs_inode, i_vnode);

	happened(0, inode, 0);
	return 0;
}

/* --- Processes that are looked at ------------------------------------------------------------- */

SEC("raw_tp")
int process_forks(__u64 *args)
{
	__u32 parent = BPF_CORE_READ((struct task_struct *)args[0], tgid);
	__u32 child = BPF_CORE_READ((struct task_struct *)args[1], tgid);
	__u32 *children_too = bpf_map_lookup_elem(&pids, &parent);

	if (children_too && *children_too && child != parent)
		bpf_map_update_elem(&pids, &child, children_too, BPF_ANY);
	return 0;
}

SEC("raw_tp")
int process_ends(__u64 *args)
{
	struct task_struct *task = (void *)args[0];
	__u32 pid = BPF_CORE_READ(task, tgid);

	if (BPF_CORE_READ(task, signal, live.counter) == 0)
		bpf_map_delete_elem(&pids, &pid);
	return 0;
}
