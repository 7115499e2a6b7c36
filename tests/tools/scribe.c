/* A victim that writes and syncs where it is told, one line of stdin at a time; it says one line
 * for each: the command's name and 0, or an errno.
 *
 *   save PATH       makes a file of one block, syncs it, closes it
 *   touch PATH      makes an empty file, syncs it, closes it
 *   open N PATH     opens a file to be kept as number N; grow N MIB writes without a sync
 *   keep N          appends a block to it and syncs that
 *   over N          overwrites its first block and syncs the data
 *   queue N         has a block appended to it by aio_write
 *   aio N           has it synced by aio_fsync, and waits for that
 *   submit N        writes a block to it by io_submit, through O_DSYNC, and waits for that
 *   msync PATH      overwrites the first block of a file or device through a mapping
 *   gap PATH        the same of a new file, with a page behind it that is not mapped (ENOMEM)
 *   line PATH       appends a block by stdio to what is opened with O_SYNC; no call of it syncs
 *   stream PATH     opens a file with O_SYNC for stdio; flush N writes N blocks to it, by stdio
 *   wants PATH      opens a file with O_SYNC as number 7, which stays open in what is executed
 *   append N        appends a block to it
 *   dsync N PATH    opens a file with O_DSYNC to be kept as number N
 *   slip N          appends a block to it, while its descriptor becomes one of /dev/null
 *   again           executes itself
 *   filter          has the kernel filter its system calls, of which all pass
 *   jail PATH       changes its root
 *   tight           leaves room for one more descriptor
 *   take N PATH     connects to a socket and takes the descriptor that it is sent as number N
 *   umount PATH     unmounts
 *   expire PATH     unmounts what nobody has used since it was said before
 *   both PATH PATH  unmounts both at the same moment; so bothlazily
 *   lock N PATH     locks it, opens it 4,000 times with O_SYNC while it unmounts PATH; looks
 *                   whether the lock is still there
 *   tell PROGRAM …  has another program run
 *   sync            makes everything durable
 *
 * As `scribe beside FOLDER` it is a thread with a table of descriptors of its own, whose numbers
 * are those of files in FOLDER for the first thread.
 */
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define FILES 8

static int files[FILES];
static char block[4096];

static int write_and_sync(int fd)
{
	if (write(fd, block, sizeof block) != sizeof block || fsync(fd))
		return errno;
	return 0;
}

static int overwrite(int fd)
{
	/* Not at the end, whatever it was opened with. */
	if (fcntl(fd, F_SETFL, 0) || pwrite(fd, block, sizeof block, 0) != sizeof block ||
	    fdatasync(fd))
		return errno;
	return 0;
}

static int save(const char *path)
{
	int fd = open(path, O_CREAT | O_RDWR | O_TRUNC | O_CLOEXEC, 0666), error;

	if (fd < 0)
		return errno;
	error = write_and_sync(fd);
	close(fd);
	return error;
}

static int touch(const char *path)
{
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666), error;

	if (fd < 0)
		return errno;
	error = fsync(fd) ? errno : 0;
	close(fd);
	return error;
}

static int grow(int fd, int mib)
{
	for (int i = 0; i < mib * 256; i++)
		if (write(fd, block, sizeof block) != sizeof block)
			return errno;
	return 0;
}

static int queue(int fd)
{
	static struct aiocb request;

	request = (struct aiocb){ .aio_fildes = fd, .aio_buf = block, .aio_nbytes = sizeof block };
	return aio_write(&request) ? errno : 0;
}

static int sync_by_aio(int fd)
{
	struct aiocb request = { .aio_fildes = fd };
	const struct aiocb *list[] = { &request };

	if (aio_fsync(O_SYNC, &request))
		return errno;
	while (aio_error(&request) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	return aio_error(&request);
}

/* MORE: syncs so much behind the mapping, too, where nothing is. */
static int sync_mapping(const char *path, size_t more)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), error = 0;
	char *memory = MAP_FAILED;

	if (!more || !ftruncate(fd, sizeof block))
		memory = mmap(NULL, sizeof block + more, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return errno;
	memcpy(memory, block, sizeof block);
	munmap(memory + sizeof block, more);
	if (msync(memory, sizeof block + more, MS_SYNC))
		error = errno;
	munmap(memory, sizeof block);
	close(fd);
	return error;
}

static int write_line(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_APPEND | O_SYNC | O_CLOEXEC, 0666);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "a");

	if (!file || fwrite(block, sizeof block, 1, file) != 1 || fclose(file))
		return errno;
	return 0;
}

static FILE *stream;

static int open_stream(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_APPEND | O_SYNC | O_CLOEXEC, 0666);

	stream = fd < 0 ? NULL : fdopen(fd, "a");
	return stream ? 0 : errno;
}

static int flush_stream(int n)
{
	for (; n > 0; n--)
		if (fwrite(block, sizeof block, 1, stream) != 1 || fflush(stream))
			return errno;
	return 0;
}

static int want(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_APPEND | O_SYNC, 0666);

	return fd < 0 || dup2(fd, 7) < 0 || (fd != 7 && close(fd)) ? errno : 0;
}

static int submit(int fd)
{
	static aio_context_t context;
	char link[64];
	struct iocb write = { .aio_lio_opcode = IOCB_CMD_PWRITE,
			      .aio_buf = (uintptr_t)block,
			      .aio_nbytes = sizeof block };
	struct iocb *list[] = { &write };
	struct io_event event;
	int through;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	through = open(link, O_WRONLY | O_DSYNC);
	write.aio_fildes = (uint32_t)through;
	if (through < 0 || (!context && syscall(SYS_io_setup, 1, &context)))
		return errno;
	if (syscall(SYS_io_submit, context, 1, list) != 1 ||
	    syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1)
		return errno;
	close(through);
	return event.res < 0 ? (int)-event.res : 0;
}

static int append(int fd) { return write(fd, block, sizeof block) == sizeof block ? 0 : errno; }

struct slip {
	int fd, error;
	char *from;
};

static void *write_slowly(void *of)
{
	struct slip *s = of;

	s->error = write(s->fd, s->from, sizeof block) == sizeof block ? 0 : errno;
	return NULL;
}

/* The write waits for its memory, which comes once the number is another file's. */
static int slip(int fd)
{
	struct slip s = { fd, 0, mmap(NULL, sizeof block, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) };
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register all = { .range = { (uintptr_t)s.from, sizeof block },
				       .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_copy copy = { .dst = (uintptr_t)s.from,
				    .src = (uintptr_t)block,
				    .len = sizeof block };
	struct pollfd waits = { (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), POLLIN, 0 };
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	pthread_t writer;

	if (null < 0 || ioctl(waits.fd, UFFDIO_API, &api) ||
	    ioctl(waits.fd, UFFDIO_REGISTER, &all) ||
	    pthread_create(&writer, NULL, write_slowly, &s))
		return errno;
	if (poll(&waits, 1, 60000) != 1 || dup2(null, fd) != fd ||
	    ioctl(waits.fd, UFFDIO_COPY, &copy))
		return errno;
	pthread_join(writer, NULL);
	close(waits.fd);
	close(null);
	return s.error;
}

static int be_filtered(void)
{
	struct sock_filter pass[] = { { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW } };
	struct sock_fprog filter = { 1, pass };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
			       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0)
		       ? errno
		       : 0;
}

static pthread_barrier_t start;

static int umount_flags;

static void *unmount_at_once(void *path)
{
	pthread_barrier_wait(&start);
	return (void *)(long)(umount2(path, umount_flags) ? errno : 0);
}

static int unmount_both(char *first, char *second, int flags)
{
	pthread_t other;
	void *own, *others;

	umount_flags = flags;
	pthread_barrier_init(&start, NULL, 2);
	if (pthread_create(&other, NULL, unmount_at_once, second))
		return errno;
	own = unmount_at_once(first);
	pthread_join(other, &others);
	return own ? (int)(long)own : (int)(long)others;
}

static _Atomic int has_ended;

static void *unmount_often(void *path)
{
	while (!has_ended) {
		umount2(path, 0);
		usleep(5000);
	}
	return NULL;
}

/* Nothing is closed: whoever closes a file drops all locks that the process has on it. */
static int keep_lock(int fd, char *mount)
{
	enum { OPENS = 4000 };
	struct rlimit room = { OPENS + 100, OPENS + 100 };
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET }, seen = lock;
	char path[32];
	pthread_t other;
	int looks, result = 0;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	looks = open(path, O_RDWR);
	if (setrlimit(RLIMIT_NOFILE, &room) || looks < 0 || fcntl(fd, F_SETLK, &lock) ||
	    pthread_create(&other, NULL, unmount_often, mount))
		return errno;
	for (int i = 0; i < OPENS && !result; i++) {
		seen = lock;
		usleep(20);
		if (open(path, O_RDWR | O_SYNC) < 0 || fcntl(looks, F_OFD_GETLK, &seen))
			result = errno;
		else if (seen.l_type == F_UNLCK)
			result = ENOLCK;
	}
	has_ended = 1;
	pthread_join(other, NULL);
	return result;
}

static int be_tight(void)
{
	int next = dup(0);
	struct rlimit limit = { (rlim_t)next + 1, (rlim_t)next + 1 };

	close(next);
	return setrlimit(RLIMIT_NOFILE, &limit) ? errno : 0;
}

static int take(const char *path)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	char byte, space[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { &byte, 1 };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = space,
			    .msg_controllen = sizeof space };
	int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

	snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
	if (connect(socket_fd, (struct sockaddr *)&at, sizeof at) || recvmsg(socket_fd, &m, 0) != 1 ||
	    !CMSG_FIRSTHDR(&m))
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	close(socket_fd);
	return fd;
}

static int tell(const char *program, const char *words)
{
	char line[8192];

	snprintf(line, sizeof line, "%s %s >/dev/null", program, words);
	return system(line);
}

/* Opens or receives what is kept as a number. */
static int hold(int n, int fd)
{
	files[n] = fd;
	return fd < 0 ? errno : 0;
}

static int obey(const char *verb, char *first, char *second)
{
	int n = first ? atoi(first) % FILES : 0;

	if (!strcmp(verb, "sync"))
		return sync(), 0;
	if (!strcmp(verb, "flush"))
		return flush_stream(first ? atoi(first) : 1);
	if (!strcmp(verb, "again"))
		return execl("/proc/self/exe", "scribe", NULL);
	if (!strcmp(verb, "filter"))
		return be_filtered();
	if (!strcmp(verb, "tight"))
		return be_tight();
	if (!first)
		return EINVAL;
	if (!strcmp(verb, "jail"))
		return chroot(first) || chdir("/") ? errno : 0;
	if (!strcmp(verb, "save"))
		return save(first);
	if (!strcmp(verb, "wants"))
		return want(first);
	if (!strcmp(verb, "append"))
		return append(files[n]);
	if (!strcmp(verb, "slip"))
		return slip(files[n]);
	if (!strcmp(verb, "touch"))
		return touch(first);
	if (!strcmp(verb, "msync"))
		return sync_mapping(first, 0);
	if (!strcmp(verb, "gap"))
		return sync_mapping(first, sizeof block) == ENOMEM ? 0 : 1;
	if (!strcmp(verb, "line"))
		return write_line(first);
	if (!strcmp(verb, "stream"))
		return open_stream(first);
	if (!strcmp(verb, "aio"))
		return sync_by_aio(files[n]);
	if (!strcmp(verb, "submit"))
		return submit(files[n]);
	if (!strcmp(verb, "queue"))
		return queue(files[n]);
	if (!strcmp(verb, "umount"))
		return umount2(first, 0) ? errno : 0;
	if (!strcmp(verb, "lazily"))
		return umount2(first, MNT_DETACH) ? errno : 0;
	if (!strcmp(verb, "expire"))
		return umount2(first, MNT_EXPIRE) ? errno : 0;
	if (!strcmp(verb, "keep"))
		return write_and_sync(files[n]);
	if (!strcmp(verb, "over"))
		return overwrite(files[n]);
	if (!second)
		return EINVAL;
	if (!strcmp(verb, "tell"))
		return tell(first, second);
	if (!strcmp(verb, "both") || !strcmp(verb, "bothlazily"))
		return unmount_both(first, second, verb[4] ? MNT_DETACH : 0);
	if (!strcmp(verb, "lock"))
		return keep_lock(files[n], second);
	if (!strcmp(verb, "open"))
		return hold(n, open(second, O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0666));
	if (!strcmp(verb, "dsync"))
		return hold(n, open(second, O_CREAT | O_RDWR | O_APPEND | O_DSYNC | O_CLOEXEC, 0666));
	if (!strcmp(verb, "grow"))
		return grow(files[n], atoi(second));
	if (!strcmp(verb, "take"))
		return hold(n, take(second));
	return EINVAL;
}

/* Holds files of a folder under each number that a thread with its own table gets first. */
static int have_files(const char *folder)
{
	char path[4096];

	for (int i = 0; i < 40; i++) {
		snprintf(path, sizeof path, "%s/held-%d", folder, i);
		if (open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0666) < 0)
			return errno;
	}
	return 0;
}

static void *serve(void *apart)
{
	char line[8192];

	if (apart && unshare(CLONE_FILES))
		exit(99);
	if (apart && !strcmp(apart, "beside"))
		close_range(3, ~0u, 0);

	memset(block, 'k', sizeof block);
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* A descriptor that is inherited is number 7. */
	files[7] = 7;
	puts("ready");
	while (fgets(line, sizeof line, stdin)) {
		char *verb = strtok(line, " \n"), *first = strtok(NULL, " \n");

		if (verb)
			printf("%s %d\n", verb, obey(verb, first, strtok(NULL, "\n")));
	}
	exit(0);
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc < 2)
		serve(NULL);
	if (argc > 2 && !strcmp(argv[1], "beside"))
		return have_files(argv[2]) || pthread_create(&thread, NULL, serve, argv[1]) ||
		       pthread_join(thread, NULL);
	if (strcmp(argv[1], "apart") || pthread_create(&thread, NULL, serve, argv[1]))
		return 99;
	pthread_exit(NULL);
}
