/* The path of a file, name by name up to the root of the process, across mounts.
 *
 * Promise: bounded by STEPS names and PATH_BYTES; what was left out is marked PATH_CUT. A rename at
 * the same moment may show in a part of the path, as it may to readlink(2) of /proc/self/fd/N.
 */

#define STEPS 512

struct walk {
	char *path;
	struct dentry *dentry, *root, *mount_root;
	struct vfsmount *vfsmount, *root_mount;
	__u32 bytes, ended;
};

/* Goes on where the mount is mounted. */
INLINE long leave_mount(struct walk *w)
{
	struct vfsmount *vfsmount = w->vfsmount;
	struct mount *mount = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
	struct mount *parent = BPF_CORE_READ(mount, mnt_parent);

	if (parent == mount || !parent) {
		w->ended = 1;
		return 1;
	}
	w->dentry = BPF_CORE_READ(mount, mnt_mountpoint);
	vfsmount = (void *)parent + bpf_core_field_offset(struct mount, mnt);
	w->mount_root = BPF_CORE_READ(vfsmount, mnt_root);
	w->vfsmount = vfsmount;
	return 0;
}

/* One name, or out of one mount. Returns 1 to stop. */
static long walk_step(__u32 i, struct walk *w)
{
	struct dentry *dentry = w->dentry, *above;
	__u32 bytes = w->bytes;
	long n;

	if (dentry == w->root && w->vfsmount == w->root_mount) {
		w->ended = 1;
		return 1;
	}
	if (dentry == w->mount_root)
		return leave_mount(w);
	above = BPF_CORE_READ(dentry, d_parent);
	/* Of a file without a directory (memfd, pipe) the name is all there is. */
	w->ended = above == dentry;
	if (w->ended && i)
		return 1;
	if (bytes > PATH_BYTES - NAME_BYTES)
		return 1;
	n = bpf_probe_read_kernel_str(w->path + bytes, NAME_BYTES,
				      BPF_CORE_READ(dentry, d_name.name));
	if (n <= 0 || (w->ended && n == 1))
		return 1;
	w->bytes = bytes + n;
	w->dentry = above;
	return w->ended != 0;
}

/* Writes the names to `path`; returns the bytes written. */
static __noinline __u32 names_of(struct file *file, char *path, __u8 *marks)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct vfsmount *vfsmount = BPF_CORE_READ(file, f_path.mnt);
	struct walk w = {
		.path = path,
		.dentry = BPF_CORE_READ(file, f_path.dentry),
		.root = BPF_CORE_READ(task, fs, root.dentry),
		.mount_root = BPF_CORE_READ(vfsmount, mnt_root),
		.vfsmount = vfsmount,
		.root_mount = BPF_CORE_READ(task, fs, root.mnt),
	};

	bpf_loop(STEPS, walk_step, &w, 0);
	if (!w.ended)
		*marks |= PATH_CUT;
	return w.bytes;
}

INLINE void describe_mount(struct record *r, struct file *file)
{
	struct vfsmount *vfsmount = BPF_CORE_READ(file, f_path.mnt);
	struct dentry *dentry = BPF_CORE_READ(file, f_path.dentry);
	struct mount *mount;

	if (vfsmount) {
		mount = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
		r->mount = BPF_CORE_READ(mount, mnt_id);
	}
	if (!BPF_CORE_READ(dentry, d_hash.pprev) && BPF_CORE_READ(dentry, d_parent) != dentry)
		r->marks |= DELETED;
}

INLINE void describe_inode(struct record *r, struct inode *inode)
{
	struct super_block *sb = BPF_CORE_READ(inode, i_sb);

	r->inode = BPF_CORE_READ(inode, i_ino);
	r->device = BPF_CORE_READ(sb, s_dev);
	bpf_probe_read_kernel_str(r->fs, sizeof r->fs, BPF_CORE_READ(sb, s_type, name));
	r->marks |= HAS_FILE;
}

INLINE void describe_file(struct record *r, struct file *file)
{
	describe_inode(r, BPF_CORE_READ(file, f_inode));
	describe_mount(r, file);
	r->path_bytes = names_of(file, r->path, &r->marks);
}
