/* Which processes and files are looked at; what is lost; how records are handed over.
 *
 * Promise: what a filter leaves out costs a look-up and is never handed over.
 */

/* Set before the programs are loaded, so that the kernel drops the branches not taken. */
struct settings {
	__u32 own_pid;
	__u32 by_pid, by_cgroup, by_exe, by_device;
	__u32 with_kernel_threads;
	__u32 ring_wake_bytes;
	/* io_uring's requests are followed by trace points of their own. */
	__u32 follows_uring;
	/* io_uring_complete hands over a pointer to the completion (6.12) or its result. */
	__u32 completion_by_pointer;
	/* The bit of a mapping's xa_flags that says "has dirty pages"; 0: not known. */
	__u32 dirty_pages_bit;
};
/* Alone in its section: src/engine.rs writes it word by word. */
const volatile struct settings set SEC(".rodata.settings");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} ring SEC(".maps");

#define SET_OF(map, key_type, entries)                 \
	struct {                                       \
		__uint(type, BPF_MAP_TYPE_HASH);       \
		__uint(max_entries, entries);          \
		__uint(map_flags, BPF_F_NO_PREALLOC);  \
		__type(key, key_type);                 \
		__type(value, __u32);                  \
	} map SEC(".maps")

#define EXE_BYTES 256
struct exe_name { char name[EXE_BYTES]; };

/* The value of a process: whether its children are looked at too. */
SET_OF(pids, __u32, 65536);
SET_OF(not_pids, __u32, 1024);
SET_OF(cgroups, __u64, 1024);
SET_OF(devices, __u32, 1024);
/* The last name of the executable, or its whole path in the form of struct record. */
SET_OF(exes, struct exe_name, 1024);

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* What is known of a process since it last executed a file. */
struct known {
	__u64 started, executed;
	__u32 told, wanted;
};
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct known);
} processes SEC(".maps");

ONCE int count_lost(__u32 pid)
{
	__u64 one = 1, *n = bpf_map_lookup_elem(&lost, &pid);

	if (!n && bpf_map_update_elem(&lost, &pid, &one, BPF_NOEXIST) == 0)
		return 0;
	if (!n)
		n = bpf_map_lookup_elem(&lost, &pid);
	if (!n) {
		pid = 0; /* made by the loader, for those that there is no room for */
		n = bpf_map_lookup_elem(&lost, &pid);
	}
	if (n)
		__sync_fetch_and_add(n, 1);
	return 0;
}

/* The reader is woken once when the ring has filled this far; it also looks by itself. */
INLINE int hand_over(void *data, __u32 bytes)
{
	__u64 before = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
	__u64 flags = BPF_RB_NO_WAKEUP;

	if (before < set.ring_wake_bytes && before + bytes + 8 >= set.ring_wake_bytes)
		flags = BPF_RB_FORCE_WAKEUP;
	return (int)bpf_ringbuf_output(&ring, data, bytes, flags);
}

/* A record with its path, as long as that is. */
INLINE void hand_over_record(struct record *r)
{
	__u32 bytes = r->path_bytes;

	OPAQUE(bytes);
	if (bytes > PATH_BYTES)
		bytes = PATH_BYTES;
	if (hand_over(r, HEAD_BYTES + bytes))
		count_lost(r->pid);
}

#define CGROUP_LEVELS 16

INLINE bool in_cgroups(void)
{
	for (int level = 0; level < CGROUP_LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (!id)
			return 0;
		if (bpf_map_lookup_elem(&cgroups, &id))
			return 1;
	}
	return 0;
}

INLINE bool device_wanted(__u32 device)
{
	return !set.by_device || bpf_map_lookup_elem(&devices, &device);
}
