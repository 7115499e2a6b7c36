/* Requests handed over through io_uring, from submission to completion. They may run in the
 * submitter, in a worker or in the ring's own thread: the ring's request is what they are known by.
 */

struct pending {
	__u64 start;
	__u32 pid, tid, uid, flags;
	__s32 fd;
	__u8 kind, dirty, has_fd, unused;
	char comm[TAG_BYTES];
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct pending);
} pending SEC(".maps");

/* The file a request names; 0 where that cannot be told yet. */
INLINE struct file *file_of_request(struct io_kiocb *req, __u64 flags, int fd)
{
	struct io_rsrc_node **nodes, *node = 0;
	struct io_ring_ctx *ring_ctx;

	if (!(flags & REQ_FIXED_FILE))
		return file_of(fd);
	if (!bpf_core_field_exists(struct io_ring_ctx, file_table.data.nodes))
		return 0;
	ring_ctx = BPF_CORE_READ(req, ctx);
	if ((__u32)fd >= BPF_CORE_READ(ring_ctx, file_table.data.nr))
		return 0;
	nodes = BPF_CORE_READ(ring_ctx, file_table.data.nodes);
	bpf_probe_read_kernel(&node, sizeof node, &nodes[(__u32)fd]);
	/* The lowest bits of the pointer are flags. */
	return node ? (void *)(BPF_CORE_READ(node, file_ptr) & ~7ul) : 0;
}

INLINE bool is_write(__u8 op)
{
	if (op == OP_WRITE || op == OP_WRITEV || op == OP_WRITE_FIXED)
		return 1;
	return bpf_core_enum_value_exists(enum io_uring_op, IORING_OP_WRITEV_FIXED) &&
	       op == bpf_core_enum_value(enum io_uring_op, IORING_OP_WRITEV_FIXED);
}

/* The kind, or 0; flags of the call go to `flags`. A file not known yet is asked at the end. */
INLINE __u8 kind_of_request(struct io_kiocb *req, struct file *file, __u8 op, __u32 *flags)
{
	void *command = req; /* the command's own members begin where the request does */

	if (op == OP_FSYNC || op == OP_SYNC_FILE_RANGE) {
		*flags = BPF_CORE_READ((struct io_sync *)command, flags);
		if (op == OP_FSYNC)
			return URING_SYNC;
		return *flags ? URING_RANGE : 0;
	}
	*flags = BPF_CORE_READ((struct io_rw *)command, flags);
	return kind_of_write(*flags, file ? GET(file, file, f_flags) : 0);
}

INLINE void fill_from(struct record *r, const struct pending *p)
{
	__builtin_memset(r, 0, HEAD_BYTES);
	r->type = A_REQUEST;
	r->kind = p->kind;
	r->route = BY_RING;
	r->dirty = p->dirty;
	r->start = p->start;
	r->pid = p->pid;
	r->tid = p->tid;
	r->uid = p->uid;
	r->fd = p->fd;
	r->flags = p->flags;
	if (p->has_fd)
		r->marks |= HAS_FD;
	__builtin_memcpy(r->comm, p->comm, sizeof r->comm);
}

struct completion {
	__s64 result;
	__u64 time;
};

/* As with a write by a call: one that wrote nothing asked for nothing. */
INLINE bool asked(const struct record *r, struct file *file, const struct completion *end)
{
	if (r->kind == URING_SYNC || r->kind == URING_RANGE)
		return 1;
	if (!file || !is_on_disk(inode_of(file)))
		return 0;
	return !end || end->result > 0 || end->result == -EIO_;
}

/* Hands over a request that has ended, or whose end (0) will not be seen. */
INLINE void hand_over_pending(const struct pending *p, struct file *file,
			      const struct completion *end)
{
	struct scratch *s = scratch_of_this_processor();
	struct record *r;

	if (!s)
		return;
	r = &s->record;
	fill_from(r, p);
	if (!r->kind && file)
		r->kind = kind_of_write(p->flags, GET(file, file, f_flags));
	if (!r->kind || !asked(r, file, end))
		return;
	if (set.by_device && (!file || !device_wanted(device_of(inode_of(file)))))
		return;
	if (end) {
		r->marks |= HAS_END | HAS_DURATION;
		r->duration = end->time - p->start;
		r->result = end->result;
	}
	if (file)
		describe_file(r, NUMBER(file));
	hand_over_record(r);
}

SEC("raw_tp")
int uring_submit(__u64 *args)
{
	struct io_kiocb *req = (void *)args[0];
	__u64 key = args[0], flags;
	__u8 op = GET(io_kiocb, req, opcode);
	struct pending p = {};
	struct file *file;

	if (op != OP_FSYNC && op != OP_SYNC_FILE_RANGE && !is_write(op))
		return 0;
	flags = GET(io_kiocb, req, flags);
	p.fd = GET(io_kiocb, req, cqe.fd);
	file = file_of_request(req, flags, p.fd);
	p.kind = kind_of_request(req, file, op, &p.flags);
	if (!p.kind && (file || !is_write(op) || !(flags & REQ_FIXED_FILE)))
		return 0;
	p.pid = bpf_get_current_pid_tgid() >> 32;
	if (!wanted(p.pid))
		return 0;
	if (file && p.kind == URING_SYNC)
		p.dirty = dirty_of(NUMBER(inode_of(file)), p.flags & FSYNC_DATASYNC, 0);
	if (file && p.kind == URING_RANGE)
		p.dirty = dirty_of(NUMBER(inode_of(file)), 0, 1);
	p.has_fd = !(flags & REQ_FIXED_FILE);
	p.tid = own_tid();
	p.uid = GET(cred, current_task()->cred, euid.val);
	bpf_get_current_comm(p.comm, sizeof p.comm);
	p.start = bpf_ktime_get_boot_ns();
	if (flags & REQ_SILENT)
		hand_over_pending(&p, file, 0);
	else if (bpf_map_update_elem(&pending, &key, &p, BPF_ANY))
		count_lost(p.pid);
	return 0;
}

SEC("raw_tp")
int uring_complete(__u64 *args)
{
	struct io_kiocb *req = (void *)args[1];
	__u64 key = args[1];
	struct pending *p = bpf_map_lookup_elem(&pending, &key), copy;
	struct completion end;

	if (!p)
		return 0;
	end.time = bpf_ktime_get_boot_ns();
	if (set.completion_by_pointer)
		end.result = BPF_CORE_READ((struct io_uring_cqe *)args[2], res);
	else
		end.result = (__s32)args[3];
	copy = *p;
	bpf_map_delete_elem(&pending, &key);
	hand_over_pending(&copy, GET(io_kiocb, req, file), &end);
	return 0;
}
