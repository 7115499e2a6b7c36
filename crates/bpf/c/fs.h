/* What reaches a file system by a way that is not followed from its beginning, and processes that
 * begin and end.
 */

/* The file that the system call in progress writes to, by its arguments; 0 where it names none. */
INLINE struct file *file_of_call(struct pt_regs *regs, __u64 call, bool compat)
{
	if (compat)
		return 0;
	switch (call) {
	case NR_write:
	case NR_pwrite64:
	case NR_writev:
	case NR_pwritev:
	case NR_pwritev2:
	case NR_sendfile:
	case NR_fallocate:
		return file_of((int)FIRST_OF(regs));
	case NR_splice:
	case NR_copy_file_range:
		return file_of((int)THIRD_OF(regs));
	}
	return 0;
}

INLINE bool is_compat(struct task_struct *task)
{
#ifdef __TARGET_ARCH_x86
	return task->thread_info.status & TS_COMPAT;
#else
	return 0;
#endif
}

INLINE __u8 kind_of_call(__u64 call, bool compat, __u32 call_flags, struct file *file)
{
	__u8 kind;

#ifdef __TARGET_ARCH_x86
	if (compat && call == NR32_fsync)
		return FSYNC;
	if (compat && call == NR32_fdatasync)
		return FDATASYNC;
	if (compat && call == NR32_msync)
		return MSYNC;
#endif
	kind = kind_of_write(call_flags, file ? GET(file, file, f_flags) : 0);
	return kind ? kind : OTHER;
}

/* A sync of `inode` that no slot knows of; `file` may be 0. Returns the slot it is noted in. */
INLINE struct slot *begin_in_fs(struct file *file, struct inode *inode, int data_only)
{
	struct task_struct *task = current_task();
	__u32 flags = task->flags, call_flags = 0;
	struct pt_regs *regs;
	struct file *named = 0;
	struct slot *slot;
	bool compat = 0;
	__u64 call;
	__u8 kind;

	if (set.by_device && !device_wanted(device_of(inode)))
		return 0;
	if (flags & PF_IO_WORKER) {
		if (set.follows_uring)
			return 0;
		kind = URING_SYNC;
	} else if (flags & PF_KTHREAD) {
		kind = OTHER;
	} else {
		regs = (void *)bpf_task_pt_regs(task);
		call = CALL_OF(regs);
		compat = is_compat(task);
		named = file_of_call(regs, call, compat);
		if (!compat && call == NR_pwritev2)
			call_flags = (__u32)SIXTH_OF(regs);
		/* A ring's work may be done at the end of any call of its owner. */
		if (set.follows_uring && !named && !compat && task->io_uring)
			return 0;
		kind = kind_of_call(call, compat, call_flags, file ? file : named);
	}
	if (named && inode_of(named) != inode)
		named = 0;
	file = file ? file : named;
	slot = begin(kind, BY_FILE_SYSTEM, call_flags, file);
	if (!slot)
		return 0;
	if (!file)
		describe_inode(&slot->record, inode);
	slot->record.dirty = dirty_of(inode, data_only, 0);
	return slot;
}

/* Whether the sync is part of a request that is known; what was not known of it is noted. */
INLINE bool is_part(struct inode *inode, int data_only)
{
	struct slot *slot = slot_in_use();

	if (!slot || slot->doing == A_FILE_SYNC)
		return 0;
	if (slot->doing == A_CALL && slot->record.dirty == DIRTY_UNKNOWN)
		slot->record.dirty = dirty_of(inode, data_only, 0);
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
