/* Syncs from many threads through rings of liburing, and checks every answer.
 *
 *   busy_uring DIRECTORY THREADS
 *
 * Says "ready", and at the end of its input "rounds N wrong M"; each wrong answer goes to stderr.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_long rounds, wrong;
static const char *directory;

static void is_wrong(int line, const char *what, long value)
{
	atomic_fetch_add(&wrong, 1);
	fprintf(stderr, "line %d: %s is %ld\n", line, what, value);
}

#define MUST_BE(x, expected)                                 \
	do {                                                 \
		long got_ = (long)(x);                       \
		if (got_ != (long)(expected))                \
			is_wrong(__LINE__, #x, got_);        \
	} while (0)

/* Submits in one of four ways; how many were taken. */
static int submit(struct io_uring *ring, long way)
{
	struct __kernel_timespec limit = { .tv_sec = 60 };
	struct io_uring_cqe *first;

	switch (way % 4) {
	case 0:
		return io_uring_submit(ring);
	case 1:
		return io_uring_submit_and_wait(ring, 1);
	case 2:
		return io_uring_submit_and_get_events(ring);
	default:
		return io_uring_submit_and_wait_timeout(ring, &first, 1, &limit, NULL);
	}
}

/* Waits for the entry of this number; what came of it. */
static int result_of(struct io_uring *ring, uint64_t number)
{
	struct io_uring_cqe *c;
	int r;

	if (io_uring_wait_cqe(ring, &c))
		return -1000;
	r = c->user_data == number ? c->res : -2000;
	io_uring_cqe_seen(ring, c);
	return r;
}

static void one_round(struct io_uring *ring, int fd, long number, long round)
{
	char text[64], back[64] = { 0 };
	int n = snprintf(text, sizeof text, "%ld %ld", number, round);
	struct io_uring_sqe *e = io_uring_get_sqe(ring);

	io_uring_prep_write(e, fd, text, (unsigned)n, 0);
	e->user_data = (uint64_t)round;
	MUST_BE(submit(ring, round), 1);
	MUST_BE(result_of(ring, (uint64_t)round), n);
	e = io_uring_get_sqe(ring);
	io_uring_prep_fsync(e, fd, round & 1 ? IORING_FSYNC_DATASYNC : 0);
	e->user_data = (uint64_t)round + 1;
	MUST_BE(submit(ring, round / 4), 1);
	MUST_BE(result_of(ring, (uint64_t)round + 1), 0);
	e = io_uring_get_sqe(ring);
	io_uring_prep_fsync(e, -1, 0);
	e->user_data = (uint64_t)round + 2;
	MUST_BE(submit(ring, 0), 1);
	MUST_BE(result_of(ring, (uint64_t)round + 2), -9 /* EBADF */);
	MUST_BE(pread(fd, back, (size_t)n, 0), n);
	MUST_BE(memcmp(back, text, (size_t)n), 0);
	atomic_fetch_add(&rounds, 1);
}

static void *worker(void *argument)
{
	long number = (long)argument, i;
	struct io_uring ring;
	char name[512];
	int fd;

	snprintf(name, sizeof name, "%s/u%ld", directory, number);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	MUST_BE(io_uring_queue_init(8, &ring, 0), 0);
	for (i = 0;; i++)
		one_round(&ring, fd, number, i);
	return NULL;
}

int main(int count, char **arguments)
{
	struct pollfd input = { 0, POLLIN, 0 };
	pthread_t thread;
	long i;

	if (count < 3)
		return 2;
	directory = arguments[1];
	for (i = 0; i < atol(arguments[2]); i++)
		pthread_create(&thread, NULL, worker, (void *)i);
	printf("ready\n");
	fflush(stdout);
	while (poll(&input, 1, -1) <= 0)
		;
	printf("rounds %ld wrong %ld\n", atomic_load(&rounds), atomic_load(&wrong));
	fflush(stdout);
	_exit(atomic_load(&wrong) ? 1 : 0);
}
