/* Cancellation of threads: which calls notice it, also while they block, what is left behind. */
#include "open_sync.h"

#include <aio.h>
#include <pthread.h>
#include <sys/sendfile.h>

static int file, full_pipe[2], empty_pipe[2];
static char *memory;
static volatile int cleaned;

static void clean(void *unused)
{
	(void)unused;
	cleaned++;
}

static void *loop_fsync(void *unused)
{
	for (;;)
		fsync(file);
	return unused;
}

static void *loop_fdatasync(void *unused)
{
	for (;;)
		fdatasync(file);
	return unused;
}

static void *loop_msync(void *unused)
{
	for (;;)
		msync(memory, 4096, MS_SYNC);
	return unused;
}

static void *open_fifo(void *unused)
{
	int fd = open(in_work("fifo"), O_WRONLY | O_SYNC);

	printf("open came back with %d\n", fd);
	return unused;
}

static void *fill_pipe(void *unused)
{
	static char block[65536];

	for (;;)
		if (write(full_pipe[1], block, sizeof block) < 0)
			return unused;
}

static void *read_pipe(void *unused)
{
	char byte;

	pthread_cleanup_push(clean, NULL);
	printf("read came back with %ld\n", (long)read(empty_pipe[0], &byte, 1));
	pthread_cleanup_pop(0);
	return unused;
}

static void *readv_pipe(void *unused)
{
	char byte;
	struct iovec vector = { &byte, 1 };

	printf("readv came back with %ld\n", (long)readv(empty_pipe[0], &vector, 1));
	return unused;
}

static void *lock_wait(void *unused)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int status = fcntl(file, F_SETLKW, &lock);

	printf("F_SETLKW came back with %d\n", status);
	return unused;
}

/* Another process holds the lock for as long as TO_CHILD is open. */
static pid_t hold_lock(int to_child[2])
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int ready[2];
	char byte = 0;
	pid_t child;

	must(pipe(to_child), "pipe");
	must(pipe(ready), "pipe");
	child = must(fork(), "fork");
	if (child == 0) {
		close(to_child[1]);
		must(fcntl(file, F_SETLK, &lock), "F_SETLK");
		must((int)write(ready[1], "r", 1), "write");
		must((int)read(to_child[0], &byte, 1), "read");
		_exit(0);
	}
	must((int)read(ready[0], &byte, 1), "read");
	close(ready[0]), close(ready[1]);
	return child;
}

static void cancel_one(const char *name, void *(*body)(void *))
{
	pthread_t thread;
	void *result = NULL;

	must(-pthread_create(&thread, NULL, body, NULL), "pthread_create");
	nap_ms(23); /* until it blocks, most likely: a cancellation before that must work as well */
	pthread_cancel(thread);
	pthread_join(thread, &result);
	printf("%s: %s\n", name, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
}

/* --- Which calls are cancellation points: asked with a cancellation that is pending already --- */

static struct iovec byte_vector = { "b", 1 };
static char read_byte;
static struct iovec read_vector = { &read_byte, 1 };

#ifdef __GLIBC__
/* The thread may be gone before it is done. */
static int sync_later(void)
{
	static struct aiocb block;

	block.aio_fildes = file;
	block.aio_sigevent.sigev_notify = SIGEV_NONE;
	return aio_fsync(O_SYNC, &block);
}
#endif

#define POINT(name, call)                                               \
	static void *point_##name(void *unused)                         \
	{                                                               \
		pthread_cleanup_push(clean, NULL);                      \
		pthread_cancel(pthread_self());                         \
		(void)!(call);                                          \
		pthread_cleanup_pop(0);                                 \
		return unused;                                          \
	}

POINT(fsync, fsync(file))
POINT(fdatasync, fdatasync(file))
POINT(sync, (sync(), 0))
POINT(syncfs, syncfs(file))
POINT(msync, msync(memory, 4096, MS_SYNC))
POINT(msync_async, msync(memory, 4096, MS_ASYNC))
POINT(sync_file_range, sync_file_range(file, 0, 1, 7))
POINT(open, close(open(in_work("file"), O_RDONLY)))
POINT(open_sync, close(open(in_work("file"), O_WRONLY | O_SYNC)))
POINT(openat, close(openat(AT_FDCWD, in_work("file"), O_RDONLY)))
POINT(write, write(file, "b", 1))
POINT(pwrite, pwrite(file, "b", 1, 0))
POINT(writev, writev(file, &byte_vector, 1))
POINT(pwritev, pwritev(file, &byte_vector, 1, 0))
POINT(read, read(file, &read_byte, 1))
POINT(readv, readv(file, &read_vector, 1))
POINT(pread, pread(file, &read_byte, 1, 0))
POINT(preadv, preadv(file, &read_vector, 1, 0))
POINT(bad_read, read(-1, &read_byte, 1))
POINT(close, close(dup(file)))
POINT(bad_close, close(-1))
POINT(creat, close(creat(in_work("creat"), 0600)))
POINT(rename, rename(in_work("missing"), in_work("too")))
POINT(renameat, renameat(AT_FDCWD, in_work("missing"), AT_FDCWD, in_work("too")))
POINT(syscall_read, syscall(SYS_read, file, &read_byte, 1))
POINT(syscall_close, syscall(SYS_close, -1))
POINT(splice, splice(999, NULL, file, NULL, 1, 0))
POINT(sendfile, sendfile(999, file, NULL, 1))
POINT(fcntl_getfl, fcntl(file, F_GETFL))
POINT(fcntl_getlk, fcntl(file, F_GETLK, &(struct flock){ .l_type = F_WRLCK }))
POINT(fcntl_setlkw, fcntl(file, F_SETLKW, &(struct flock){ .l_type = F_UNLCK }))
POINT(syscall_fsync, syscall(SYS_fsync, file))
POINT(syscall_write, syscall(SYS_write, file, "b", 1))
POINT(bad_fsync, fsync(-1))
#ifdef __GLIBC__
POINT(aio_fsync, sync_later())
POINT(pwritev2, pwritev2(file, &byte_vector, 1, 0, 2))
POINT(copy_file_range, copy_file_range(999, NULL, file, NULL, 1, 0))
POINT(preadv2, preadv2(file, &read_vector, 1, 0, 0))
POINT(pread64, pread64(file, &read_byte, 1, 0))
POINT(renameat2, renameat2(AT_FDCWD, in_work("missing"), AT_FDCWD, in_work("too"), 0))
POINT(open64, close(open64(in_work("file"), O_RDONLY)))
POINT(openat64, close(openat64(AT_FDCWD, in_work("file"), O_RDONLY)))
POINT(open_by_handle_at, open_by_handle_at(999, NOWHERE, O_RDONLY))
#endif

#define ASK(name) ask(#name, point_##name)

static void ask(const char *name, void *(*body)(void *))
{
	pthread_t thread;
	void *result = NULL;

	cleaned = 0;
	must(-pthread_create(&thread, NULL, body, NULL), "pthread_create");
	pthread_join(thread, &result);
	printf("%s: %s a cancellation point, cleaned up %d times\n", name,
	       result == PTHREAD_CANCELED ? "is" : "is not", cleaned);
}

static void ask_for_all(void)
{
	ASK(fsync), ASK(fdatasync), ASK(sync), ASK(syncfs), ASK(msync), ASK(msync_async);
	ASK(sync_file_range), ASK(open), ASK(open_sync), ASK(openat), ASK(write), ASK(pwrite);
	ASK(writev), ASK(pwritev), ASK(splice), ASK(sendfile), ASK(fcntl_getfl), ASK(fcntl_getlk);
	ASK(read), ASK(readv), ASK(pread), ASK(preadv), ASK(bad_read), ASK(close), ASK(bad_close);
	ASK(creat), ASK(rename), ASK(renameat), ASK(syscall_read), ASK(syscall_close);
	ASK(fcntl_setlkw), ASK(syscall_fsync), ASK(syscall_write), ASK(bad_fsync);
#ifdef __GLIBC__
	ASK(aio_fsync);
	ASK(preadv2), ASK(pread64), ASK(renameat2);
	ASK(pwritev2), ASK(copy_file_range), ASK(open64), ASK(openat64), ASK(open_by_handle_at);
#endif
}

/* With cancellation off nothing is cancelled, and the kind of cancellation stays what it was. */
static void *with_cancellation_off(void *unused)
{
	int state, type;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_cancel(pthread_self());
	CALL("write", "cancellation off", write(file, "b", 1));
	CALL("fsync", "cancellation off", fsync(file));
	pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
	printf("was deferred: %d, was on: %d\n", type == PTHREAD_CANCEL_DEFERRED,
	       state == PTHREAD_CANCEL_ENABLE);
	return unused;
}

int main(int count, char **arguments)
{
	int to_child[2], status;
	pid_t holder;

	begin(count, arguments);
	prepare_openings();
	file = make_file("file", O_RDWR);
	must(pipe(full_pipe), "pipe");
	must(pipe(empty_pipe), "pipe");
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	cancel_one("loop of fsync", loop_fsync);
	cancel_one("loop of fdatasync", loop_fdatasync);
	cancel_one("loop of msync", loop_msync);
	cancel_one("open of a fifo", open_fifo);
	cancel_one("write to a full pipe", fill_pipe);
	cleaned = 0;
	cancel_one("read of an empty pipe", read_pipe);
	printf("cleaned up %d times\n", cleaned);
	cancel_one("readv of an empty pipe", readv_pipe);
	holder = hold_lock(to_child);
	cancel_one("wait for a lock", lock_wait);
	close(to_child[1]);
	waitpid(holder, &status, 0);
	ask_for_all();
	ask("with cancellation off", with_cancellation_off);
	return 0;
}
