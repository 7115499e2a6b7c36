/* Has a file synced by the ways to submit that liburing has since 2.8 and 2.9.
 *
 *   newer_uring FILE N   N times by each; ends with 2 where one was not answered as it should be
 *
 * With -DNEWER it is a library that has these two on an older liburing, by what that has.
 */
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>

int io_uring_submit_and_wait_min_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
					 unsigned n, struct __kernel_timespec *limit,
					 unsigned min, sigset_t *mask);
int io_uring_submit_and_wait_reg(struct io_uring *ring, struct io_uring_cqe **cqe,
				 unsigned n, int at);

#ifdef NEWER
#include <dlfcn.h>

/* liburing's own, which no preload has seen. */
static int submit(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned n)
{
	static __typeof__(io_uring_submit_and_wait_timeout) *own;
	struct __kernel_timespec limit = { .tv_sec = 5 };

	if (!own)
		own = dlsym(dlopen("liburing.so.2", RTLD_NOW), "io_uring_submit_and_wait_timeout");
	return own(ring, cqe, n, &limit, NULL);
}

int io_uring_submit_and_wait_min_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
					 unsigned n, struct __kernel_timespec *limit,
					 unsigned min, sigset_t *mask)
{
	(void)limit, (void)min, (void)mask;
	return submit(ring, cqe, n);
}

int io_uring_submit_and_wait_reg(struct io_uring *ring, struct io_uring_cqe **cqe,
				 unsigned n, int at)
{
	(void)at;
	return submit(ring, cqe, n);
}
#else

int main(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_CREAT, 0600), n = argc > 2 ? atoi(argv[2]) : 1;
	struct __kernel_timespec limit = { .tv_sec = 5 };
	struct io_uring ring;

	if (fd < 0 || io_uring_queue_init(8, &ring, 0))
		return 1;
	for (int i = 0; i < 2 * n; i++) {
		struct io_uring_cqe *cqe;
		int r;

		io_uring_prep_fsync(io_uring_get_sqe(&ring), fd, IORING_FSYNC_DATASYNC);
		r = i % 2 ? io_uring_submit_and_wait_reg(&ring, &cqe, 1, 0)
			  : io_uring_submit_and_wait_min_timeout(&ring, &cqe, 1, &limit, 0, NULL);
		if (r != 1 || io_uring_peek_cqe(&ring, &cqe) || cqe->res)
			return 2;
		io_uring_cqe_seen(&ring, cqe);
	}
	return 0;
}
#endif
