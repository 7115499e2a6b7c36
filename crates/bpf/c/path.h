/* The path of a file, name by name up to the root of the process, across mounts.
 *
 * Promise: bounded by STEPS names and PATH_BYTES; what was left out is marked PATH_CUT. A rename at
 * the same moment may show in a part of the path, as it may to readlink(2) of /proc/self/fd/N.
 */

#define STEPS 512

INLINE struct task_struct *current_task(void) { return bpf_get_current_task_btf(); }

INLINE __u32 device_of(struct inode *inode)
{
	return GET(super_block, GET(inode, inode, i_sb), s_dev);
}

INLINE struct inode *inode_of(struct file *file) { return GET(file, file, f_inode); }

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
	struct mount *parent = GET(mount, mount, mnt_parent);

	if (parent == mount || !parent) {
		w->ended = 1;
		return 1;
	}
	w->dentry = GET(mount, mount, mnt_mountpoint);
	vfsmount = (void *)parent + bpf_core_field_offset(struct mount, mnt);
	w->mount_root = GET(vfsmount, vfsmount, mnt_root);
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
	above = GET(dentry, dentry, d_parent);
	/* Of a file without a directory (memfd, pipe) the name is all there is. */
	w->ended = above == dentry;
	if (w->ended && i)
		return 1;
	if (bytes > PATH_BYTES - NAME_BYTES)
		return 1;
	n = bpf_probe_read_kernel_str(w->path + bytes, NAME_BYTES,
				      GET(dentry, dentry, d_name.name));
	if (n <= 0 || (w->ended && n == 1))
		return 1;
	w->bytes = bytes + n;
	w->dentry = above;
	return w->ended != 0;
}

/* Writes the names of the file's path. */
INLINE void describe_path(struct record *r, struct file *file)
{
	struct fs_struct *fs = current_task()->fs;
	struct vfsmount *vfsmount = GET(file, file, f_path.mnt);
	struct walk w = {
		.path = r->path,
		.dentry = GET(file, file, f_path.dentry),
		.root = GET(fs_struct, fs, root.dentry),
		.mount_root = GET(vfsmount, vfsmount, mnt_root),
		.vfsmount = vfsmount,
		.root_mount = GET(fs_struct, fs, root.mnt),
	};

	bpf_loop(STEPS, walk_step, &w, 0);
	if (!w.ended)
		r->marks |= PATH_CUT;
	r->path_bytes = w.bytes;
}

INLINE void describe_mount(struct record *r, struct file *file)
{
	struct vfsmount *vfsmount = GET(file, file, f_path.mnt);
	struct dentry *dentry = GET(file, file, f_path.dentry);
	struct mount *mount;

	if (vfsmount) {
		mount = (void *)vfsmount - bpf_core_field_offset(struct mount, mnt);
		r->mount = GET(mount, mount, mnt_id);
	}
	if (!GET(dentry, dentry, d_hash.pprev) && GET(dentry, dentry, d_parent) != dentry)
		r->marks |= DELETED;
}

INLINE void describe_inode(struct record *r, struct inode *inode)
{
	struct super_block *sb = GET(inode, inode, i_sb);
	struct file_system_type *type = GET(super_block, sb, s_type);

	r->inode = GET(inode, inode, i_ino);
	r->device = GET(super_block, sb, s_dev);
	bpf_probe_read_kernel_str(r->fs, sizeof r->fs, GET(file_system_type, type, name));
	r->marks |= HAS_FILE;
}

ONCE int describe_file(struct record *r, __u64 file_address)
{
	struct file *file = (void *)file_address;

	if (!r)
		return 0;
	describe_inode(r, inode_of(file));
	describe_mount(r, file);
	describe_path(r, file);
	return 0;
}
