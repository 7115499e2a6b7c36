/* Trace programs: every sync request of the machine, once.
 *
 * A request made by a system call is noted when the call begins (the file's name, whether anything
 * is dirty) and handed over when it ends. While a thread is inside such a call, what it makes the
 * file system do is part of it. io_uring's requests are followed from submission to completion.
 * What reaches ext4, XFS or btrfs by none of these ways (writes on a mount with `sync`, copies to
 * a file with O_SYNC, 32-bit programs) is seen at the file system's own trace points.
 *
 * What a full ring does not take is counted by process. The programs change nothing.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "record.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define INLINE static __always_inline
/* Verified once by the kernel, not once a caller: takes numbers (pointers of the kernel too), and
 * pointers to whole structures of ours. */
#define ONCE __noinline
/* A pointer of the kernel as a number: negated twice, for a pointer keeps its type otherwise. */
#define NUMBER(p)                                                 \
	__extension__({                                           \
		__u64 number_ = (__u64)(p);                       \
		asm volatile("%0 = -%0" : "+r"(number_));         \
		asm volatile("%0 = -%0" : "+r"(number_));         \
		number_;                                          \
	})
/* Keeps the compiler from reasoning about a value, so that the kernel's verifier sees its bound. */
#define OPAQUE(x) asm volatile("" : "+r"(x))

/* Reads a member of a kernel structure: directly where the kernel lets a pointer be given its type
 * (6.2), which costs next to nothing, else by a copy. A bad pointer reads as 0 both ways. */
extern void *bpf_rdonly_cast(const void *pointer, __u32 type) __ksym __weak;
#define TYPED(type, p) \
	((struct type *)bpf_rdonly_cast((p), bpf_core_type_id_kernel(struct type)))
#define GET(type, p, member)                                                     \
	__extension__({                                                          \
		typeof(((struct type *)0)->member) value_;                       \
		const void *from_ = (p);                                         \
		if (bpf_ksym_exists(bpf_rdonly_cast)) {                          \
			value_ = TYPED(type, from_)->member;                     \
			OPAQUE(value_); /* or both branches share one load */    \
		} else {                                                         \
			value_ = BPF_CORE_READ((struct type *)from_, member);    \
		}                                                                \
		value_;                                                          \
	})

#include "filter.h"
#include "path.h"
#include "dirty.h"
#include "slot.h"
#include "calls.h"
#include "aio.h"
#include "uring.h"
#include "fs.h"
