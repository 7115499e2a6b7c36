/* Children of a program in which another thread submits to a ring all the time: each submits to a
 * ring of its own, and loads a library. forks_uring COUNT; says how many have ended well. */
#include <dlfcn.h>
#include <liburing.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int is_over;

static int submit_one(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;

	io_uring_prep_nop(io_uring_get_sqe(ring));
	if (io_uring_submit(ring) != 1 || io_uring_wait_cqe(ring, &cqe))
		return 1;
	io_uring_cqe_seen(ring, cqe);
	return 0;
}

static void *submit(void *unused)
{
	struct io_uring ring;

	if (io_uring_queue_init(8, &ring, 0))
		exit(3);
	while (!is_over)
		if (submit_one(&ring))
			exit(4);
	return unused;
}

static int child(void)
{
	struct io_uring ring;

	return io_uring_queue_init(8, &ring, 0) || submit_one(&ring) ||
	       !dlopen("libm.so.6", RTLD_NOW);
}

/* Whether it ends well within ten seconds. */
static int ends(pid_t pid)
{
	const struct timespec nap = { .tv_nsec = 200000 };
	time_t until = time(NULL) + 10;
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (time(NULL) > until)
			return 0;
		nanosleep(&nap, NULL);
	}
	return status == 0;
}

int main(int count, char **arguments)
{
	int forks = count > 1 ? atoi(arguments[1]) : 0, good = 0;
	pthread_t thread;

	if (pthread_create(&thread, NULL, submit, NULL))
		return 2;
	for (int i = 0; i < forks; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(child());
		if (!ends(pid))
			break;
		good++;
	}
	printf("%d of %d\n", good, forks);
	fflush(stdout);
	_exit(good != forks);
}
