/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The contract between the tracer and the library that it puts into a running process.
 *
 * The library is one flat image: what stands at offset N of the file lies at BASE + N in the
 * process. It begins with struct sl_gate_head. Up to `data_at` it is mapped to read and execute,
 * behind that to read and write, private to the process; then follow the control page and the
 * slots. src/gate.rs is the mirror.
 */
#ifndef SYNCLATER_GATE_H
#define SYNCLATER_GATE_H

#include "core/page.h"

#define SL_GATE_MAGIC 0x6574616774616c73ull /* "slatgate", little endian */
#define SL_EXE_MAX    1024u
#define SL_ERRAND_STACK 8192

/* sl_errand.flags_of */
#define SL_ERRAND_MARKED   1u /* an earlier session took O_SYNC off descriptors that it may have */
#define SL_ERRAND_FOLLOWED 2u /* what it executes is reached, too */
#define SL_ERRAND_RINGS    4u /* it may write by rings that nobody sees */

/* What an errand may answer beside an errno. */
#define SL_ERRAND_NO_CLOCK (-2001) /* the thread may not read the counter (PR_SET_TSC) */

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"

/* All but `magic` and `version` are offsets or lengths in bytes. */
struct sl_gate_head {
	uint64_t magic;
	uint32_t version; /* SL_VERSION */
	uint32_t places_at, places_len; /* struct sl_place, filled by the tracer */
	uint32_t data_at;               /* a multiple of the page size, as is `whole` */
	uint32_t whole;
	uint32_t gate; /* where a place jumps to */
	uint32_t boot, boot_len; /* position-independent code that maps the rest */
	uint32_t there;          /* what that calls then */
	uint32_t gate_go;        /* the gate for code on small stacks */
	uint32_t arrive;         /* where a program may begin instead of at its own entry */
	uint32_t arrival;        /* struct sl_arrival, filled by the tracer */
	uint32_t gate_uring;     /* the gate in front of a function of liburing's */
	uint32_t marks;          /* struct sl_marks, core/core.h */
};

/* Where a program begins that goes through `arrive`. */
struct sl_arrival {
	uint64_t entry;
	uint64_t told; /* where the auxiliary vector has AT_ENTRY, to be set right; 0: nowhere */
};

/* One system-call site. What stands in front of the site's `syscall` instruction is replaced by a
 * jump to `code`: those same bytes, then `lea entry(%rip), %r11`, then a jump to a gate. Or a
 * function of liburing's, called from several sites: `code` calls a gate, and jumps there. */
struct sl_place {
	uint8_t code[24];
	uint64_t entry; /* address of the `syscall` instruction, or of the function */
};

/* What a thread of the process is sent to do. It lies on that thread's own stack, below the red
 * zone, which may be a small one; the tracer writes all of it, but for what is marked. */
struct sl_errand {
	/* Written by the thread and its helper: the state, 1 where the socket is there, or -errno;
	 * the helper's number as it sees itself; the number of the socket that the tracer takes. */
	int32_t state, helper, socket, unused;
	uint64_t mask;  /* all signals; then the thread's own mask, written by it */
	uint64_t image; /* where the library lies, or is to lie */
	uint64_t room;  /* bytes from there on that are to be free, or 0: the library is there */
	uint32_t data_at, whole;
	uint64_t there;
	uint64_t page, slots; /* where to map them */
	uint32_t page_size, slots_size;
	uint32_t pid; /* as this process sees itself */
	uint32_t flags_of; /* SL_ERRAND_* */
	uint64_t pid_ns;
	uint32_t exe_len; /* bytes of what it executes, which the socket brings; 0: not known */
	uint32_t reserved;
	/* The thread's registers, in the order in which they are taken off again. */
	uint64_t saved[16], flags, back;
};

#pragma GCC diagnostic pop

/* gate.c: where it stands whether any descriptor of the session bears a mark. */
extern uint32_t *sl_stripped_at;

/* attach.c */
long sl_attach(const struct sl_errand *e, const char *exe, int page, int slots);

SL_STATIC_ASSERT(sizeof(struct sl_place) == 32, "sl_place");
SL_STATIC_ASSERT(sizeof(struct sl_gate_head) == 64, "sl_gate_head");

#endif
