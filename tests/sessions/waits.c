/* waits SECONDS [signals]: waits in every call that says EINTR, or begins its time anew, where it
 * is disturbed in vain, a thread each, for SECONDS. With "signals" each gets one after half a
 * second that is ignored (SIGCHLD). Says "ready" when all wait, and at the end of each
 * "NAME RESULT ERRNO MILLISECONDS".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static long seconds;

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void limit(int fd)
{
	struct timeval t = { seconds, 0 };

	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
}

static void fill(int fd)
{
	static char bytes[4096];
	int flags = fcntl(fd, F_GETFL);

	fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	while (write(fd, bytes, sizeof bytes) > 0)
		;
	while (write(fd, bytes, 1) > 0)
		;
	fcntl(fd, F_SETFL, flags);
}

static int end_of(int is_full)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(1);
	if (is_full)
		fill(pair[0]);
	limit(pair[0]);
	return pair[0];
}

static int listener(struct sockaddr_un *name, socklen_t *length)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	*name = (struct sockaddr_un){ .sun_family = AF_UNIX };
	*length = sizeof(sa_family_t);
	/* A name of its own, which lies in no folder. */
	if (bind(fd, (void *)name, *length) || listen(fd, 0))
		exit(1);
	*length = sizeof *name;
	getsockname(fd, (void *)name, length);
	return fd;
}

/* Each call, and what it takes, before it is begun. */
struct way {
	const char *name;
	int (*ready)(void);
	long (*wait)(int fd);
};

static int full(void) { return end_of(1); }
static int empty(void) { return end_of(0); }
static int none(void) { return -1; }

static struct iovec one_byte(void)
{
	static char byte;

	return (struct iovec){ &byte, 1 };
}

static long do_write(int fd) { return write(fd, "x", 1); }
static long do_send(int fd) { return send(fd, "x", 1, 0); }
static long do_read(int fd) { char c; return read(fd, &c, 1); }
static long do_recv(int fd) { char c; return recv(fd, &c, 1, 0); }
static long do_writev(int fd) { struct iovec v = one_byte(); return writev(fd, &v, 1); }
static long do_readv(int fd) { struct iovec v = one_byte(); return readv(fd, &v, 1); }
static long do_preadv2(int fd) { struct iovec v = one_byte(); return preadv2(fd, &v, 1, -1, 0); }
static long do_pwritev2(int fd) { struct iovec v = one_byte(); return pwritev2(fd, &v, 1, -1, 0); }

static long do_sendmsg(int fd)
{
	struct iovec v = one_byte();
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	return sendmsg(fd, &m, 0);
}

static long do_recvmsg(int fd)
{
	struct iovec v = one_byte();
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	return recvmsg(fd, &m, 0);
}

static long do_sendmmsg(int fd)
{
	struct iovec v = one_byte();
	struct mmsghdr m = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1 } };

	return sendmmsg(fd, &m, 1, 0);
}

static long do_recvmmsg(int fd)
{
	struct iovec v = one_byte();
	struct mmsghdr m = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1 } };

	return recvmmsg(fd, &m, 1, 0, NULL);
}

static long do_sendfile(int fd)
{
	return sendfile(fd, open("/etc/passwd", O_RDONLY), NULL, 10);
}

static long do_splice(int fd)
{
	int ends[2];

	return pipe(ends) || write(ends[1], "x", 1) != 1 ? -2 : splice(ends[0], NULL, fd, NULL, 1, 0);
}

static long do_connect(int fd)
{
	struct sockaddr_un name;
	socklen_t length;

	(void)fd;
	listener(&name, &length);
	if (connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&name, length))
		return -2;
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	limit(fd);
	return connect(fd, (void *)&name, length);
}

static int listening(void)
{
	struct sockaddr_un name;
	socklen_t length;
	int fd = listener(&name, &length);

	limit(fd);
	return fd;
}

static long do_accept(int fd) { return accept(fd, NULL, NULL); }
static long do_accept4(int fd) { return accept4(fd, NULL, NULL, SOCK_CLOEXEC); }

static int epoll(void) { return epoll_create1(0); }

static long do_epoll_wait(int fd)
{
	struct epoll_event event;

	return epoll_wait(fd, &event, 1, (int)seconds * 1000);
}

static long do_epoll_pwait2(int fd)
{
	struct epoll_event event;
	int64_t limit[2] = { seconds, 0 };

	return syscall(441, fd, &event, 1, limit, NULL, 8);
}

static long do_semtimedop(int fd)
{
	struct timespec limit = { seconds, 0 };
	struct sembuf less = { 0, -1, 0 };
	int id = semget(IPC_PRIVATE, 1, 0600);
	long r = semtimedop(id, &less, 1, &limit);
	int error = errno;

	(void)fd;
	semctl(id, 0, IPC_RMID);
	errno = error;
	return r;
}

static long do_sigtimedwait(int fd)
{
	struct timespec limit = { seconds, 0 };
	sigset_t set;

	(void)fd;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	return sigtimedwait(&set, NULL, &limit);
}

static long do_io_getevents(int fd)
{
	struct timespec limit = { seconds, 0 };
	char event[32];
	unsigned long context = 0;

	(void)fd;
	if (syscall(SYS_io_setup, 1, &context))
		return -2;
	return syscall(SYS_io_getevents, context, 1L, 1L, event, &limit);
}

static int ring(void)
{
	uint32_t parameters[30] = { 0 };

	return (int)syscall(425 /* io_uring_setup */, 1, parameters);
}

static long do_io_uring_enter(int fd)
{
	int64_t limit[2] = { seconds, 0 };
	uint64_t argument[3] = { 0, 0, (uintptr_t)limit };

	/* GETEVENTS, EXT_ARG */
	return syscall(426, fd, 0, 1, 1 | 8, argument, sizeof argument);
}

/* What the kernel goes on with by itself. */
static long do_poll(int fd) { (void)fd; return poll(NULL, 0, (int)seconds * 1000); }

static long do_nanosleep(int fd)
{
	struct timespec limit = { seconds, 0 };

	(void)fd;
	return nanosleep(&limit, NULL);
}

static long do_select(int fd)
{
	struct timeval limit = { seconds, 0 };

	(void)fd;
	return select(0, NULL, NULL, NULL, &limit);
}

static long do_sem_timedwait(int fd)
{
	struct timespec limit;
	sem_t sem;

	(void)fd;
	sem_init(&sem, 0, 0);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += seconds;
	return sem_timedwait(&sem, &limit);
}

static const struct way way[] = {
	{ "write", full, do_write },	   { "send", full, do_send },
	{ "writev", full, do_writev },	   { "pwritev2", full, do_pwritev2 },
	{ "sendmsg", full, do_sendmsg },   { "sendmmsg", full, do_sendmmsg },
	{ "sendfile", full, do_sendfile }, { "splice", full, do_splice },
	{ "read", empty, do_read },	   { "recv", empty, do_recv },
	{ "readv", empty, do_readv },	   { "preadv2", empty, do_preadv2 },
	{ "recvmsg", empty, do_recvmsg },  { "recvmmsg", empty, do_recvmmsg },
	{ "connect", none, do_connect },   { "accept", listening, do_accept },
	{ "accept4", listening, do_accept4 }, { "epoll_wait", epoll, do_epoll_wait },
	{ "epoll_pwait2", epoll, do_epoll_pwait2 },
	{ "semtimedop", none, do_semtimedop }, { "sigtimedwait", none, do_sigtimedwait },
	{ "io_getevents", none, do_io_getevents },
	{ "io_uring_enter", ring, do_io_uring_enter },
	{ "poll", none, do_poll },	   { "nanosleep", none, do_nanosleep },
	{ "select", none, do_select },	   { "sem_timedwait", none, do_sem_timedwait },
};

static void *wait_one(void *of)
{
	const struct way *its = of;
	int fd = its->ready();
	long begin = now(), r = its->wait(fd), error = r < 0 ? errno : 0;

	printf("%s %ld %ld %ld\n", its->name, r, error, now() - begin);
	return NULL;
}

int main(int count, char **words)
{
	enum { WAYS = sizeof way / sizeof *way };
	pthread_t thread[WAYS];
	sigset_t set;

	if (count < 2)
		return 2;
	seconds = atol(words[1]);
	setlinebuf(stdout);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	for (int k = 0; k < WAYS; k++)
		pthread_create(&thread[k], NULL, wait_one, (void *)&way[k]);
	puts("ready");
	if (count > 2) {
		usleep(500000);
		for (int k = 0; k < WAYS; k++)
			pthread_kill(thread[k], SIGCHLD);
	}
	for (int k = 0; k < WAYS; k++)
		pthread_join(thread[k], NULL);
	return 0;
}
