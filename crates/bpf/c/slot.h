/* What each thread is doing: the request that its system call makes, until it ends.
 *
 * Promise: one slot a thread, made at its first request; it goes with the thread.
 */

enum doing { NOTHING, A_CALL, A_WRITE, AN_AIO_CALL, A_FILE_SYNC };

#define AIO_BLOCKS 64

struct aio_block {
	__u32 index;
	__s32 fd;
	__u32 flags;
};

struct slot {
	/* One more than the process's exec id when it was found to be wanted. */
	__u64 wanted_as;
	__u32 doing;
	__u32 aio_blocks;
	struct aio_block aio[AIO_BLOCKS];
	struct record record;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct slot);
} slots SEC(".maps");

/* Where a record is put together that belongs to no thread's slot. */
struct scratch {
	struct record record;
	char args[ARGS_BYTES];
	struct exe_name exe;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

INLINE struct scratch *scratch_of_this_processor(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratches, &zero);
}

/* The slot of this thread, where it is inside a request. */
INLINE struct slot *slot_in_use(void)
{
	struct slot *slot = bpf_task_storage_get(&slots, current_task(), 0, 0);

	return slot && slot->doing ? slot : 0;
}

/* --- Processes -------------------------------------------------------------------------------- */

INLINE bool exe_wanted(struct scratch *s)
{
	const struct record *r = &s->record;
	long n;

	__builtin_memset(&s->exe, 0, sizeof s->exe);
	n = bpf_probe_read_kernel_str(s->exe.name, sizeof s->exe.name, r->path);
	if (n > 0 && bpf_map_lookup_elem(&exes, &s->exe))
		return 1;
	n = r->path_bytes;
	OPAQUE(n);
	/* One byte is left, so that no path looks like a name: a name ends with one NUL. */
	if (n <= 0 || n >= EXE_BYTES)
		return 0;
	bpf_probe_read_kernel(s->exe.name, n, r->path);
	s->exe.name[n] = '/';
	return bpf_map_lookup_elem(&exes, &s->exe) != 0;
}

/* The arguments, behind the path. */
INLINE void add_args(struct record *r, struct mm_struct *mm)
{
	__u64 from = BPF_CORE_READ(mm, arg_start);
	__u64 bytes = BPF_CORE_READ(mm, arg_end) - from;
	__u32 at = r->path_bytes;

	OPAQUE(at);
	if (bytes > ARGS_BYTES)
		bytes = ARGS_BYTES;
	OPAQUE(bytes);
	if (at > PATH_BYTES || bytes > ARGS_BYTES || !bytes)
		return;
	/* `args` lies behind `path`: there is room for both. */
	if (bpf_probe_read_user((char *)r + HEAD_BYTES + at, bytes, (void *)from) == 0)
		r->result = (__s64)bytes;
}

INLINE void tell_process(struct scratch *s, struct known *known, __u32 pid)
{
	__u32 path = s->record.path_bytes;
	__u32 args = s->record.result;

	OPAQUE(path);
	OPAQUE(args);
	if (path > PATH_BYTES || args > ARGS_BYTES)
		return;
	if (hand_over(&s->record, HEAD_BYTES + path + args) == 0)
		known->told = 1;
}

/* Whether the executable is wanted; tells of a process before its first request. */
ONCE int process_wanted(__u32 pid)
{
	struct task_struct *task = current_task();
	struct known *known = bpf_map_lookup_elem(&processes, &pid), fresh = {};
	struct mm_struct *mm = task->mm;
	struct scratch *s = scratch_of_this_processor();
	struct file *exe;

	fresh.started = task->group_leader->start_boottime;
	fresh.executed = task->self_exec_id;
	fresh.wanted = 1;
	if (known && known->started == fresh.started && known->executed == fresh.executed &&
	    (known->told || !known->wanted))
		return known->wanted;
	if (!s)
		return 0;
	__builtin_memset(&s->record, 0, HEAD_BYTES);
	s->record.type = A_PROCESS;
	s->record.pid = pid;
	exe = mm ? BPF_CORE_READ(mm, exe_file) : 0;
	if (exe)
		describe_file(&s->record, NUMBER(exe));
	if (set.by_exe)
		fresh.wanted = exe_wanted(s);
	if (fresh.wanted) {
		s->record.start = bpf_ktime_get_boot_ns();
		bpf_get_current_comm(s->record.comm, sizeof s->record.comm);
		if (mm)
			add_args(&s->record, mm);
		tell_process(s, &fresh, pid);
	}
	bpf_map_update_elem(&processes, &pid, &fresh, BPF_ANY);
	return fresh.wanted;
}

/* --- Requests --------------------------------------------------------------------------------- */

/* Of a thread whose slot says that its process is wanted, only what may change is asked. */
ONCE int wanted(__u32 pid)
{
	struct task_struct *task = current_task();
	struct slot *slot = bpf_task_storage_get(&slots, task, 0, 0);

	if (set.by_cgroup && !in_cgroups())
		return 0;
	if (slot && slot->wanted_as == task->self_exec_id + 1)
		return 1;
	if (pid == set.own_pid || bpf_map_lookup_elem(&not_pids, &pid))
		return 0;
	if (!set.with_kernel_threads && task->flags & PF_KTHREAD)
		return 0;
	if (set.by_pid && !bpf_map_lookup_elem(&pids, &pid))
		return 0;
	return process_wanted(pid);
}

/* The slot of this thread, whose process is wanted. */
INLINE struct slot *make_slot(__u32 pid)
{
	struct task_struct *task = current_task();
	struct slot *slot =
		bpf_task_storage_get(&slots, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct known *known;

	if (!slot) {
		count_lost(pid);
		return 0;
	}
	if (slot->wanted_as != task->self_exec_id + 1) {
		/* Not before the process has been told of. */
		known = bpf_map_lookup_elem(&processes, &pid);
		slot->wanted_as = known && known->told ? task->self_exec_id + 1 : 0;
	}
	return slot;
}

/* The thread's number as the program sees it: in the innermost name space. */
INLINE __u32 own_tid(void)
{
	struct task_struct *task = current_task();
	struct pid *pid = task->thread_pid;
	unsigned int level = GET(pid, pid, level);
	__u64 each = bpf_core_type_size(struct upid);
	__u32 number = 0;

	if (!level)
		return task->pid;
	bpf_probe_read_kernel(&number, sizeof number,
			      (void *)pid + bpf_core_field_offset(struct pid, numbers) +
				      level * each + bpf_core_field_offset(struct upid, nr));
	OPAQUE(number); /* or both ways share one load */
	return number;
}

/* Who asks. */
INLINE void fill_asker(struct record *r, __u32 pid)
{
	r->pid = pid;
	r->tid = own_tid();
	r->uid = GET(cred, current_task()->cred, euid.val);
	bpf_get_current_comm(r->comm, sizeof r->comm);
}

/* The file behind a descriptor of this process; 0 where there is none. */
INLINE struct file *file_of(int fd)
{
	struct files_struct *files = current_task()->files;
	struct fdtable *table = GET(files_struct, files, fdt);
	struct file **array, *file = 0;

	if ((__u32)fd >= GET(fdtable, table, max_fds))
		return 0;
	array = GET(fdtable, table, fd);
	bpf_probe_read_kernel(&file, sizeof file, &array[(__u32)fd]);
	return file;
}

INLINE bool is_on_disk(struct inode *inode)
{
	__u16 type = GET(inode, inode, i_mode) & S_IFMT_;

	return type == S_IFREG_ || type == S_IFBLK_;
}

/* Which write it is, by flags of the call and of the file; 0: one that does not sync. */
INLINE __u8 kind_of_write(__u32 call_flags, __u32 file_flags)
{
	if (call_flags & RWF_SYNC_)
		return WRITE_RWF_SYNC;
	if (file_flags & O_SYNC_BIT_)
		return WRITE_SYNC;
	if (call_flags & RWF_DSYNC_)
		return WRITE_RWF_DSYNC;
	return file_flags & O_DSYNC_ ? WRITE_DSYNC : 0;
}

INLINE __u8 dirty_for(__u8 kind, struct file *file)
{
	if (kind != FSYNC && kind != FDATASYNC && kind != MSYNC && kind != RANGE)
		return DIRTY_UNKNOWN;
	return dirty_of(NUMBER(inode_of(file)), kind == FDATASYNC, kind == RANGE);
}

/* Notes a request that begins; its file, where it has one, decides whether it is wanted. */
INLINE struct slot *begin(__u8 kind, __u8 route, __u32 flags, struct file *file)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct slot *slot;
	struct record *r;

	if (!wanted(pid))
		return 0;
	if (set.by_device && kind != SYNC &&
	    (!file || !device_wanted(device_of(inode_of(file)))))
		return 0;
	slot = make_slot(pid);
	if (!slot)
		return 0;
	r = &slot->record;
	__builtin_memset(r, 0, HEAD_BYTES);
	r->type = A_REQUEST;
	r->kind = kind;
	r->route = route;
	r->flags = flags;
	fill_asker(r, pid);
	if (file) {
		describe_file(r, NUMBER(file));
		r->dirty = dirty_for(kind, file);
	}
	r->start = bpf_ktime_get_boot_ns();
	return slot;
}

INLINE void end(struct slot *slot, __s64 result)
{
	struct record *r = &slot->record;

	slot->doing = NOTHING;
	r->duration = bpf_ktime_get_boot_ns() - r->start;
	r->result = result;
	r->marks |= HAS_END | HAS_DURATION;
	hand_over_record(r);
}
