/* rings_busy_uring FOLDER THREADS: each thread has a ring of one FSYNC, which it has prepared once,
 * and hands that in again and again. Says "ready"; and for each line that it reads, once they
 * pause, how many entries are no FSYNC any more: "gone N".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 16 };

static struct io_uring rings[MOST];
static atomic_int is_paused, pausing;

static void must(int is_done, const char *what)
{
	if (!is_done) {
		perror(what);
		exit(1);
	}
}

static void *ask(void *of)
{
	struct io_uring *ring = of;
	struct io_uring_cqe *done;

	for (;;) {
		must(!io_uring_wait_cqe(ring, &done) && !done->res, "a completion");
		io_uring_cqe_seen(ring, done);
		if (is_paused) {
			pausing++;
			while (is_paused)
				usleep(1000);
			pausing--;
		}
		ring->sq.sqe_tail++;
		must(io_uring_submit(ring) == 1, "submit");
	}
	return NULL;
}

int main(int count, char **words)
{
	char line[20], path[400];
	pthread_t thread;
	int threads;

	if (count != 3)
		return 2;
	setlinebuf(stdout);
	threads = atoi(words[2]);
	for (int k = 0; k < threads; k++) {
		snprintf(path, sizeof path, "%s/file-%d", words[1], k);
		int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);

		must(fd >= 0 && write(fd, "x", 1) == 1, path);
		must(!io_uring_queue_init(1, &rings[k], 0), "a ring");
		io_uring_prep_fsync(io_uring_get_sqe(&rings[k]), fd, 0);
		must(io_uring_submit(&rings[k]) == 1, "submit");
		must(!pthread_create(&thread, NULL, ask, &rings[k]), "a thread");
	}
	puts("ready");
	while (fgets(line, sizeof line, stdin)) {
		int gone = 0;

		is_paused = 1;
		while (pausing < threads)
			usleep(1000);
		for (int k = 0; k < threads; k++)
			gone += rings[k].sq.sqes[0].opcode != IORING_OP_FSYNC;
		is_paused = 0;
		while (pausing)
			usleep(1000);
		printf("gone %d\n", gone);
	}
	return 0;
}
