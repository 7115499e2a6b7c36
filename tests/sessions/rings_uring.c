/* rings_uring FILE WAY: asks for syncs of FILE by a ring, in ways that have to be looked at twice.
 *
 *   part      an FSYNC behind an entry that the kernel refuses, which so stays in the ring: says
 *             "part", reads a line, writes to FILE, submits the rest, says "rest", reads another
 *   filtered  the same, and puts a seccomp filter on itself behind the first line
 *   own       10 FSYNCs by a ring that a thread of the kernel's takes from (SQPOLL)
 *   parents   the same by a child to its parent's ring, where the number is another file's
 *   once      the entries of a ring as they were prepared once: all, then each by itself; says
 *             "once", reads a line, and submits each twice more, which the kernel is to see
 *   attached  the same, behind "ready" and FSYNCs until it reads a line
 *   worker    a read that waits in a thread of the kernel's: says "ready", reads a line
 *   changed   an entry that was prepared once, and of which descriptor or flags are written anew:
 *             answers as the kernel's, and 6 requests that it would carry out; last its own NOP
 *   rewritten all of an FSYNC but its opcode, behind a line: says "part" before and "rest" behind,
 *             and twice more, of another descriptor
 *   linked    an FSYNC linked behind a write that stays in the ring, as one before it is refused
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENTRIES = 8, ASKED = 10, UNKNOWN = 255 };

static struct io_uring *ring; /* shared with a child */
static int file;

static void must(int is_done, const char *what)
{
	if (!is_done) {
		perror(what);
		exit(1);
	}
}

static void append(void) { must(write(file, "bytes", 5) == 5, "write"); }

static int completed(void)
{
	struct io_uring_cqe *entry;
	int result;

	must(io_uring_wait_cqe(ring, &entry) == 0, "a completion");
	result = entry->res;
	io_uring_cqe_seen(ring, entry);
	return result;
}

static void say_and_hear(const char *what)
{
	char line[16];

	puts(what);
	must(fgets(line, sizeof line, stdin) != NULL, "a line");
}

static void be_filtered(void)
{
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog all = { 1, &allow };

	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
	must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0, "seccomp");
}

static void in_part(int filtered)
{
	struct io_uring_sqe *bad = io_uring_get_sqe(ring);

	io_uring_prep_nop(bad);
	bad->opcode = UNKNOWN;
	append();
	io_uring_prep_fsync(io_uring_get_sqe(ring), file, 0);
	memset(io_uring_get_sqe(ring), IORING_OP_NOP, sizeof *bad); /* of descriptor 0 */
	must(io_uring_submit(ring) == 1, "an entry is refused");
	must(completed() == -EINVAL, "it is told");
	say_and_hear("part");
	if (filtered)
		be_filtered();
	append();
	must(io_uring_submit(ring) == 2, "the rest is taken");
	must(completed() == 0, "fsync");
	must(completed() == 0, "a NOP of its own");
	say_and_hear("rest");
}

/* One entry, to a ring that is polled: that may report more (io_uring_submit(3)), as an entry that
 * completes at once is told before it is counted as taken. */
static void submit_polled(void) { must(io_uring_submit(ring) >= 1, "submit"); }

static void ask_for_all(void)
{
	for (int k = 0; k < ASKED; k++) {
		append();
		io_uring_prep_fsync(io_uring_get_sqe(ring), file, 0);
		submit_polled();
		must(completed() == 0, "fsync");
	}
}

static int is_as_it_was(unsigned k, const struct io_uring_sqe *was)
{
	return !memcmp(&ring->sq.sqes[k], &was[k], sizeof *was);
}

/* By the first entry, of which what stays the same is not written again. */
static void read_by_hand(const struct io_uring_sqe *was)
{
	struct io_uring_sqe *entry = &ring->sq.sqes[0];
	char text[5];

	append();
	entry->opcode = IORING_OP_READ;
	entry->addr = (uintptr_t)text;
	entry->len = sizeof text;
	entry->rw_flags = 0;
	ring->sq.sqe_tail++;
	must(io_uring_submit(ring) == 1, "submit");
	must(completed() == sizeof text, "from the beginning");
	must(!memcmp(text, "bytes", sizeof text), "what is there");
	*entry = *was;
}

static void prepared_once(void)
{
	struct io_uring_sqe was[ENTRIES], *entry;
	unsigned k;

	for (k = 0; k < ENTRIES; k++) {
		entry = io_uring_get_sqe(ring);
		if (k % 2)
			io_uring_prep_sync_file_range(entry, file, 3, 1, SYNC_FILE_RANGE_WRITE);
		else
			io_uring_prep_fsync(entry, file, 0);
	}
	memcpy(was, ring->sq.sqes, sizeof was);
	must(io_uring_submit(ring) == ENTRIES, "submit");
	for (k = 0; k < ENTRIES; k++)
		must(completed() == 0, "fsync");
	for (k = 0; k < ENTRIES; k++, ring->sq.sqe_tail++) /* as io_uring_get_sqe of liburing 2.4 */
		ring->sq.sqes[k].rw_flags = ring->sq.sqes[k].addr3 = 0;
	must(io_uring_submit(ring) == ENTRIES, "submit once more");
	for (k = 0; k < ENTRIES; k++)
		must(completed() == 0, "fsync");
	memcpy(ring->sq.sqes, was, sizeof was);
	read_by_hand(&was[0]);
	for (k = 0; k < 3 * ENTRIES; k++) {
		unsigned at = ring->sq.sqe_tail % ENTRIES;

		if (k == ENTRIES)
			say_and_hear("once");
		append();
		ring->sq.sqe_tail++;
		must(io_uring_submit(ring) == 1, "submit");
		must(completed() == 0, "fsync");
		must(is_as_it_was(at, was) == (k >= ENTRIES), "what the kernel took");
	}
}

/* Until somebody says that it is in a session, and the file system in the ledger. */
static void ask_until_told(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	char line[16];

	puts("ready");
	while (!poll(&input, 1, 1))
		must(fsync(file) == 0, "fsync");
	must(fgets(line, sizeof line, stdin) != NULL, "a line");
}

static void by_a_worker(void)
{
	struct io_uring_sqe *entry = io_uring_get_sqe(ring);
	struct __kernel_timespec soon = { .tv_nsec = 1000000 };
	struct io_uring_cqe *none;
	static char byte;
	int pipes[2];

	must(pipe(pipes) == 0, "a pipe");
	io_uring_prep_read(entry, pipes[0], &byte, 1, 0);
	entry->flags = IOSQE_ASYNC;
	/* The thread looks as if it were in the same call. */
	io_uring_submit_and_wait_timeout(ring, &none, 1, &soon, NULL);
	say_and_hear("ready");
	must(write(pipes[1], "x", 1) == 1, "write");
	must(completed() == 1, "read");
}

static int handed_in(void)
{
	ring->sq.sqe_tail++;
	must(io_uring_submit(ring) == 1, "submit");
	return completed();
}

/* In a ring of one entry. */
static void changed(void)
{
	struct io_uring_sqe *entry = ring->sq.sqes;
	int other = dup(file), pipes[2];

	must(pipe(pipes) == 0, "a pipe");
	io_uring_prep_fsync(entry, file, 0);
	must(handed_in() == 0, "fsync");
	entry->fd = other;
	entry->fsync_flags = IORING_FSYNC_DATASYNC;
	must(handed_in() == 0, "fdatasync by another descriptor");
	entry->fd = -1;
	must(handed_in() == -EBADF, "none");
	entry->fd = pipes[0];
	must(handed_in() == -EINVAL, "a pipe");
	must(dup2(file, 0) == 0, "dup2");
	entry->fd = 0;
	must(handed_in() == 0, "the first descriptor");
	must(io_uring_register_files(ring, &other, 1) == 0, "a registered file");
	entry->flags = IOSQE_FIXED_FILE;
	must(handed_in() == 0, "by its number");
	entry->flags = 0;
	must(handed_in() == 0, "by a descriptor");
	entry->addr = 0;
	entry->fsync_flags = 2;
	must(handed_in() == -EINVAL, "flags that nobody knows");
	entry->addr = 0;
	entry->fsync_flags = 0;
	must(handed_in() == 0, "an address of its own");
	io_uring_prep_nop(entry);
	must(handed_in() == 0, "a NOP of its own");
}

/* In a ring of one entry. */
static void rewritten(void)
{
	struct io_uring_sqe *entry = ring->sq.sqes;

	io_uring_prep_fsync(entry, file, 0);
	must(handed_in() == 0, "fsync");
	for (int k = 0; k < 3; k++) {
		say_and_hear("part");
		append();
		memset(&entry->flags, 0, sizeof *entry - sizeof entry->opcode);
		entry->fd = k ? dup(file) : file;
		must(handed_in() == 0, "what is still an fsync");
		say_and_hear("rest");
	}
}

static void linked(void)
{
	struct io_uring_sqe *entry = io_uring_get_sqe(ring);
	int pipes[2];
	char text[5];

	must(pipe(pipes) == 0, "a pipe");
	io_uring_prep_nop(entry);
	entry->opcode = UNKNOWN;
	entry = io_uring_get_sqe(ring);
	io_uring_prep_read(entry, pipes[0], text, sizeof text, 0);
	entry->flags |= IOSQE_IO_LINK;
	entry = io_uring_get_sqe(ring);
	io_uring_prep_write(entry, file, "bytes", sizeof text, 0);
	entry->flags |= IOSQE_IO_LINK;
	must(io_uring_submit(ring) == 1, "an entry is refused");
	must(completed() == -EINVAL, "it is told");
	io_uring_prep_fsync(io_uring_get_sqe(ring), file, 0);
	must(io_uring_submit(ring) == 3, "the rest is taken");
	must(write(pipes[1], "bytes", sizeof text) == sizeof text, "to the pipe");
	must(completed() == sizeof text, "read");
	must(completed() == sizeof text, "write");
	must(completed() == 0, "fsync");
}

static void by_a_child(void)
{
	int status, pid = fork(), copy = dup(file), other;

	if (pid == 0) {
		must((other = memfd_create("other", 0)) >= 0, "a memfd");
		for (int k = 0; k < ASKED; k++) {
			must(write(copy, "bytes", 5) == 5, "write");
			must(dup2(other, file) == file, "dup2");
			io_uring_prep_fsync(io_uring_get_sqe(ring), file, 0);
			submit_polled();
			must(completed() == 0, "fsync");
		}
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid && status == 0, "the child");
}

int main(int count, char **arguments)
{
	must(count == 3, "usage: rings_uring FILE WAY");
	const char *way = arguments[2];
	int filtered = !strcmp(way, "filtered"), in_parts = filtered || !strcmp(way, "part");
	int is_rewritten = !strcmp(way, "rewritten"), one = is_rewritten || !strcmp(way, "changed");
	int polled = !strcmp(way, "own") || !strcmp(way, "parents");
	unsigned setup = polled ? IORING_SETUP_SQPOLL : 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	ring = mmap(NULL, sizeof *ring, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(ring != MAP_FAILED, "mmap");
	file = open(arguments[1], O_CREAT | O_RDWR | O_APPEND, 0644);
	must(file >= 0, arguments[1]);
	must(io_uring_queue_init(one ? 1 : ENTRIES, ring, setup) == 0, "a ring");
	if (in_parts)
		in_part(filtered);
	else if (is_rewritten)
		rewritten();
	else if (one)
		changed();
	else if (!strcmp(way, "linked"))
		linked();
	else if (!strcmp(way, "once"))
		prepared_once();
	else if (!strcmp(way, "attached"))
		ask_until_told(), prepared_once();
	else if (!strcmp(way, "worker"))
		by_a_worker();
	else if (!strcmp(way, "own"))
		ask_for_all();
	else
		by_a_child();
	return 0;
}
