/* Whether a sync has anything to do, as the file system itself finds out.
 *
 * Pages: the mapping's marks for dirty pages and for pages being written. The rest of the file: by
 * ext4's journal, XFS's log and btrfs's transactions; elsewhere by the inode's own marks. Marks of
 * the inode alone would not do: ext4 and XFS leave them set when they have synced.
 */

INLINE bool pages_dirty(struct address_space *mapping)
{
	/* The next mark behind "dirty" is "being written". */
	return GET(address_space, mapping, i_pages.xa_flags) & (set.dirty_pages_bit * 3);
}

INLINE __u8 said(bool dirty) { return dirty ? DIRTY : CLEAN; }

INLINE __u8 ext4_dirty(struct inode *inode, struct ext4_sb_info *sb, bool data_only)
{
	struct ext4_inode_info *ext4;
	struct journal_s *journal;
	__u32 needs;

	if (!bpf_core_type_exists(struct ext4_inode_info))
		return DIRTY_UNKNOWN;
	journal = GET(ext4_sb_info, sb, s_journal);
	if (!journal)
		return DIRTY_UNKNOWN;
	ext4 = (void *)inode - bpf_core_field_offset(struct ext4_inode_info, vfs_inode);
	needs = data_only ? GET(ext4_inode_info, ext4, i_datasync_tid)
			  : GET(ext4_inode_info, ext4, i_sync_tid);
	return said((int)(GET(journal_s, journal, j_commit_sequence) - needs) < 0);
}

INLINE __u8 xfs_dirty(struct inode *inode, bool data_only)
{
	struct xfs_inode_log_item *item;
	struct xfs_inode *xfs;
	__u32 fields;

	if (!bpf_core_type_exists(struct xfs_inode))
		return DIRTY_UNKNOWN;
	xfs = (void *)inode - bpf_core_field_offset(struct xfs_inode, i_vnode);
	item = BPF_CORE_READ(xfs, i_itemp);
	if (!item || !BPF_CORE_READ(xfs, i_pincount.counter))
		return CLEAN;
	if (!data_only)
		return DIRTY;
	if (bpf_core_field_exists(struct xfs_inode_log_item, ili_datasync_seq))
		return said(BPF_CORE_READ(item, ili_datasync_seq) != 0);
	if (!bpf_core_field_exists(struct xfs_inode_log_item, ili_fsync_fields))
		return DIRTY;
	fields = BPF_CORE_READ(item, ili_fsync_fields);
	return said(fields & ~XFS_TIMESTAMP);
}

INLINE __u8 btrfs_dirty(struct inode *inode)
{
	struct btrfs_fs_info *fs;
	struct btrfs_inode *btrfs;
	struct btrfs_root *root;
	int last;

	if (!bpf_core_type_exists(struct btrfs_inode) ||
	    !bpf_core_field_exists(struct btrfs_fs_info, last_trans_committed))
		return DIRTY_UNKNOWN;
	btrfs = (void *)inode - bpf_core_field_offset(struct btrfs_inode, vfs_inode);
	root = BPF_CORE_READ(btrfs, root);
	fs = BPF_CORE_READ(root, fs_info);
	if (BPF_CORE_READ(btrfs, last_trans) <= BPF_CORE_READ(fs, last_trans_committed))
		return CLEAN;
	last = BPF_CORE_READ(btrfs, last_sub_trans);
	return said(BPF_CORE_READ(btrfs, logged_trans) != BPF_CORE_READ(fs, generation) ||
		    last > BPF_CORE_READ(btrfs, last_log_commit) ||
		    last > BPF_CORE_READ(root, last_log_commit));
}

INLINE __u8 marked_dirty(struct inode *inode, bool data_only)
{
	struct inode___named *named = (void *)inode;
	__u32 marks;

	if (!bpf_core_enum_value_exists(enum inode_state_flags_t, I_DIRTY_SYNC) ||
	    !bpf_core_field_exists(struct inode___named, i_state))
		return DIRTY_UNKNOWN;
	marks = bpf_core_enum_value(enum inode_state_flags_t, I_DIRTY_DATASYNC);
	if (!data_only)
		marks |= bpf_core_enum_value(enum inode_state_flags_t, I_DIRTY_SYNC);
	if ((__u32)BPF_CORE_READ(named, i_state) & marks)
		return DIRTY;
	/* Without a journal a folder's names are in buffers that bear no mark of the inode. */
	return (GET(inode, inode, i_mode) & 0170000) == 0040000 ? DIRTY_UNKNOWN : CLEAN;
}

ONCE int dirty_of(__u64 address, int data_only, int pages_only)
{
	struct inode *inode = (void *)address;
	struct super_block *sb = GET(inode, inode, i_sb);
	__u64 magic = GET(super_block, sb, s_magic);
	void *own = GET(super_block, sb, s_fs_info);
	char name[4] = {};
	__u8 rest;

	if (!set.dirty_pages_bit)
		return DIRTY_UNKNOWN;
	if (pages_dirty(GET(inode, inode, i_mapping)))
		return DIRTY;
	if (pages_only)
		return CLEAN;
	if (magic == XFS_MAGIC)
		return xfs_dirty(inode, data_only);
	if (magic == BTRFS_MAGIC)
		return btrfs_dirty(inode);
	if (magic != EXT4_MAGIC)
		return DIRTY_UNKNOWN;
	/* The magic number is ext2's too, which has no journal. */
	bpf_probe_read_kernel(name, sizeof name, BPF_CORE_READ(sb, s_type, name));
	rest = name[3] == '2' ? DIRTY_UNKNOWN : ext4_dirty(inode, own, data_only);
	return rest == DIRTY_UNKNOWN ? marked_dirty(inode, data_only) : rest;
}
