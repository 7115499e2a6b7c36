/* Requests made by system calls. Each program is attached to the trace points of several calls,
 * with the kind as its cookie; a program may only look at as many arguments as its calls have.
 */

INLINE void begin_on_fd(int fd, __u32 flags, __u8 kind)
{
	struct file *file = file_of(fd);
	struct slot *slot = begin(kind, BY_CALL, flags, file);

	if (!slot)
		return;
	slot->record.fd = fd;
	slot->record.marks |= HAS_FD;
	slot->doing = A_CALL;
}

/* fsync, fdatasync, syncfs */
SEC("tp")
int enter_fd(struct call_enter *ctx)
{
	begin_on_fd((int)ctx->args[0], 0, (__u8)bpf_get_attach_cookie(ctx));
	return 1;
}

SEC("tp")
int enter_sync(struct call_enter *ctx)
{
	struct slot *slot = begin(SYNC, BY_CALL, 0, 0);

	if (slot)
		slot->doing = A_CALL;
	return 1;
}

SEC("tp")
int enter_range(struct call_enter *ctx)
{
	/* Without flags nothing is written: so one asks whether a descriptor can be synced. */
	if ((__u32)ctx->args[3])
		begin_on_fd((int)ctx->args[0], (__u32)ctx->args[3], RANGE);
	return 1;
}

struct mapped { struct file *file; };

static long note_file(struct task_struct *task, struct vm_area_struct *vma, struct mapped *mapped)
{
	mapped->file = vma->vm_file;
	return 0;
}

SEC("tp")
int enter_msync(struct call_enter *ctx)
{
	__u32 flags = (__u32)ctx->args[2];
	struct mapped mapped = {};
	struct slot *slot;

	/* Both together are refused, and ask for nothing. */
	if (!(flags & MS_SYNC_) || flags & MS_ASYNC_)
		return 1;
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_find_vma))
		bpf_find_vma(current_task(), ctx->args[0], note_file, &mapped, 0);
	slot = begin(MSYNC, BY_CALL, flags, mapped.file);
	if (slot)
		slot->doing = A_CALL;
	return 1;
}

/* Nearly all writes end here: they do not sync. */
INLINE void begin_write(int fd, __u32 call_flags)
{
	struct file *file = file_of(fd);
	struct slot *slot;
	__u8 kind;

	if (!file)
		return;
	kind = kind_of_write(call_flags, GET(file, file, f_flags));
	if (!kind || !is_on_disk(inode_of(file)))
		return;
	slot = begin(kind, BY_CALL, call_flags, file);
	if (!slot)
		return;
	slot->record.fd = fd;
	slot->record.marks |= HAS_FD;
	slot->doing = A_WRITE;
}

/* write, pwrite64, writev, pwritev */
SEC("tp")
int enter_write(struct call_enter *ctx)
{
	begin_write((int)ctx->args[0], 0);
	return 1;
}

SEC("tp")
int enter_pwritev2(struct call_enter *ctx)
{
	begin_write((int)ctx->args[0], (__u32)ctx->args[5]);
	return 1;
}

/* The end of each of these calls. */
SEC("tp")
int leave(struct call_leave *ctx)
{
	struct slot *slot = slot_in_use();

	if (!slot)
		return 1;
	if (slot->doing == A_CALL)
		end(slot, ctx->ret);
	/* A write that wrote nothing asked for nothing, unless the sync itself failed. */
	else if (slot->doing == A_WRITE && (ctx->ret > 0 || ctx->ret == -EIO_))
		end(slot, ctx->ret);
	else if (slot->doing == A_WRITE)
		slot->doing = NOTHING;
	return 1;
}
