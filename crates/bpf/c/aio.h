/* Requests handed over by io_submit(2): fsync, fdatasync, and writes that sync. The kernel carries
 * them out in threads of its own, so that their end is not seen: they are marked as queued.
 */

#define BLOCKS_LOOKED_AT 1024

struct blocks {
	struct slot *slot;
	__u64 count, list;
	__u32 found;
};

/* Notes a block that syncs. Returns 1 to stop. */
static long note_block(__u32 i, struct blocks *b)
{
	struct slot *slot = b->slot;
	__u32 flags = 0, at = b->found;
	struct iocb block;
	struct file *file;
	__u64 address;

	if (i >= b->count || at >= AIO_BLOCKS ||
	    bpf_probe_read_user(&address, sizeof address, (void *)(b->list + (__u64)i * 8)) ||
	    bpf_probe_read_user(&block, sizeof block, (void *)address))
		return 1;
	if (block.opcode == AIO_PWRITE || block.opcode == AIO_PWRITEV) {
		flags = block.key_and_flags[1];
		file = file_of((int)block.fd);
		if (!file || !kind_of_write(flags, GET(file, file, f_flags)) ||
		    !is_on_disk(inode_of(file)))
			return 0;
	} else if (block.opcode != AIO_FSYNC && block.opcode != AIO_FDSYNC) {
		return 0;
	}
	slot->aio[at].index = i;
	slot->aio[at].fd = (int)block.fd;
	slot->aio[at].flags = flags;
	b->found = at + 1;
	return 0;
}

SEC("tp")
int enter_io_submit(struct call_enter *ctx)
{
	struct blocks b = { .count = ctx->args[1], .list = ctx->args[2] };
	__u32 pid = bpf_get_current_pid_tgid() >> 32;

	if (!wanted(pid))
		return 1;
	b.slot = make_slot(pid);
	if (!b.slot)
		return 1;
	bpf_loop(BLOCKS_LOOKED_AT, note_block, &b, 0);
	if (!b.found)
		return 1;
	b.slot->aio_blocks = b.found;
	b.slot->record.start = bpf_ktime_get_boot_ns();
	b.slot->doing = AN_AIO_CALL;
	return 1;
}

struct taken {
	struct slot *slot;
	__s64 count;
	__u64 start;
};

/* Hands over one block that the kernel took. Returns 1 to stop. */
static long hand_over_block(__u32 i, struct taken *t)
{
	struct slot *slot = t->slot;
	struct record *r = &slot->record;
	struct aio_block *block;
	struct file *file;

	if (i >= AIO_BLOCKS || i >= slot->aio_blocks)
		return 1;
	block = &slot->aio[i];
	/* It took that many, from the first on. */
	if ((__s64)block->index >= t->count)
		return 1;
	file = file_of(block->fd);
	if (set.by_device && (!file || !device_wanted(device_of(inode_of(file)))))
		return 0;
	__builtin_memset(r, 0, HEAD_BYTES);
	r->type = A_REQUEST;
	r->kind = AIO;
	r->route = BY_AIO;
	r->flags = block->flags;
	r->fd = block->fd;
	r->marks = HAS_FD;
	r->start = t->start;
	fill_asker(r, bpf_get_current_pid_tgid() >> 32);
	if (file)
		describe_file(r, NUMBER(file));
	hand_over_record(r);
	return 0;
}

SEC("tp")
int leave_io_submit(struct call_leave *ctx)
{
	struct taken t = { .slot = slot_in_use(), .count = ctx->ret };

	if (!t.slot || t.slot->doing != AN_AIO_CALL)
		return 1;
	t.slot->doing = NOTHING;
	t.start = t.slot->record.start;
	bpf_loop(AIO_BLOCKS, hand_over_block, &t, 0);
	return 1;
}
