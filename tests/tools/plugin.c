/* A plugin that has a liburing of its own (-DPLUGIN), and the program that loads it: plugin FILE
 * PLUGIN global|local ROUNDS. Each round loads it, has it write and sync, and lets it go. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef PLUGIN
#include <liburing.h>

static int is_done(struct io_uring *ring, int want)
{
	struct io_uring_cqe *cqe;
	int res = io_uring_wait_cqe(ring, &cqe);

	if (res)
		return 0;
	res = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return res == want;
}

int work(int fd)
{
	struct io_uring ring;
	int good;

	if (io_uring_queue_init(8, &ring, 0))
		return 1;
	io_uring_prep_write(io_uring_get_sqe(&ring), fd, "hello\n", 6, 0);
	good = io_uring_submit(&ring) == 1 && is_done(&ring, 6);
	io_uring_prep_fsync(io_uring_get_sqe(&ring), fd, 0);
	good = good && io_uring_submit_and_wait(&ring, 1) == 1 && is_done(&ring, 0);
	io_uring_queue_exit(&ring);
	return !good;
}

/* Its calls are its last acts: both return to who has called it. */
int submit(struct io_uring *ring, int wait)
{
	return wait ? io_uring_submit_and_wait(ring, 1) : io_uring_submit(ring);
}

int has_waited(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;

	return io_uring_peek_cqe(ring, &cqe) == 0;
}

int prepare(int fd, struct io_uring *ring)
{
	static struct __kernel_timespec soon = { .tv_nsec = 20000000 };

	if (fd >= 0 && io_uring_queue_init(8, ring, 0))
		return 1;
	if (fd >= 0)
		io_uring_prep_fsync(io_uring_get_sqe(ring), fd, 0);
	else
		io_uring_prep_timeout(io_uring_get_sqe(ring), &soon, 0, 0);
	return 0;
}

int drain(struct io_uring *ring)
{
	return !is_done(ring, 0);
}
#else
static int load_and_work(const char *plugin, int mode, int fd)
{
	void *handle = dlopen(plugin, RTLD_NOW | mode);
	int (*work)(int), (*prepare)(int, void *), (*submit)(void *, int), (*drain)(void *);
	int (*has_waited)(void *), bad;
	static long ring[64];

	if (!handle)
		return fprintf(stderr, "%s\n", dlerror());
	work = dlsym(handle, "work");
	prepare = dlsym(handle, "prepare");
	submit = dlsym(handle, "submit");
	drain = dlsym(handle, "drain");
	has_waited = dlsym(handle, "has_waited");
	bad = work(fd) || prepare(fd, ring);
	for (int wait = 0; wait < 2 && !bad; wait++)
		bad = submit(ring, wait) != 1 || (wait ? !has_waited(ring) : drain(ring)) ||
		      prepare(-1, ring);
	dlclose(handle);
	/* Something else takes its place. */
	mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return bad;
}

int main(int count, char **arguments)
{
	int fd, bad = 0;

	if (count != 5)
		return 2;
	fd = open(arguments[1], O_RDWR | O_CREAT, 0600);
	for (int i = 0; i < atoi(arguments[4]); i++)
		bad |= load_and_work(arguments[2],
				     strcmp(arguments[3], "global") ? RTLD_LOCAL : RTLD_GLOBAL, fd);
	return bad ? 1 : 0;
}
#endif
