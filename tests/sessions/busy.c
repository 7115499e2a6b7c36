/* Syncs from many threads and checks every answer, while threads and processes come and go and
 * signals arrive: for whatever may go wrong where its code is exchanged meanwhile.
 *
 *   busy DIRECTORY THREADS
 *
 * Says "ready", and at the end of its input "rounds N wrong M"; each wrong answer goes to stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UNTOUCHED  77
#define FEW_ROUNDS 20
#define FROM_OTHER 100 /* number of the first short-lived worker */
#define TICK_NS    2000000
#define LONG_NS    900000000

static atomic_long rounds, wrong, signals;
static const char *directory;

static void is_wrong(int line, const char *what)
{
	atomic_fetch_add(&wrong, 1);
	fprintf(stderr, "line %d: %s, errno %d\n", line, what, errno);
}

/* X holds, and leaves errno alone. */
#define GOOD(x)                                        \
	do {                                           \
		errno = UNTOUCHED;                     \
		if (!(x) || errno != UNTOUCHED)        \
			is_wrong(__LINE__, #x);        \
	} while (0)

/* X fails with E. */
#define FAILS(x, e)                              \
	do {                                     \
		errno = 0;                       \
		if ((x) != -1 || errno != (e))   \
			is_wrong(__LINE__, #x);  \
	} while (0)

static void one_round(int fd, char *memory, long number, long round)
{
	char text[64], back[64] = { 0 };
	int n = snprintf(text, sizeof text, "%ld %ld", number, round);
	struct iovec v = { text, (size_t)n };

	GOOD(pwrite(fd, text, (size_t)n, 0) == n);
	GOOD(fsync(fd) == 0);
	GOOD(fdatasync(fd) == 0);
	memory[100] = (char)round;
	GOOD(msync(memory, 4096, MS_SYNC) == 0);
	GOOD(syscall(SYS_fsync, fd) == 0);
	FAILS(fsync(-1), EBADF);
	FAILS(msync(memory + 1, 10, MS_SYNC), EINVAL);
	GOOD(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE) == 0);
	GOOD(syscall(SYS_pwritev2, fd, &v, 1, 0L, 0L, 2L) == n);
	GOOD(pread(fd, back, (size_t)n, 0) == n && !memcmp(back, text, (size_t)n));
	atomic_fetch_add(&rounds, 1);
}

/* A file whose writes are to be synced, open for a moment. */
static void write_synced(const char *name, long round)
{
	int how = round & 1 ? O_DSYNC : O_SYNC, fd = open(name, O_RDWR | O_CLOEXEC | how);
	char text[64], back[64] = { 0 };
	int n = snprintf(text, sizeof text, "synced %ld", round);
	struct iovec v = { text, (size_t)n };

	GOOD((fcntl(fd, F_GETFL) & (O_SYNC | O_RDWR | O_APPEND)) == (how | O_RDWR));
	GOOD(fcntl(fd, F_GETSIG) == 0);
	GOOD(write(fd, text, (size_t)n) == n);
	GOOD(writev(fd, &v, 1) == n);
	GOOD(pwrite(fd, text, (size_t)n, 100) == n);
	GOOD(lseek(fd, 0, SEEK_CUR) == 2 * n);
	GOOD(pread(fd, back, (size_t)n, 100) == n && !memcmp(back, text, (size_t)n));
	GOOD(close(fd) == 0);
	FAILS(write(fd = -1, text, 1), EBADF);
}

static void *worker(void *argument)
{
	long number = (long)argument, i, end = number >= FROM_OTHER ? FEW_ROUNDS : __LONG_MAX__;
	char name[512], *memory;
	int fd;

	snprintf(name, sizeof name, "%s/f%ld.%d", directory, number, getpid());
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || ftruncate(fd, 4096)) {
		is_wrong(__LINE__, name);
		return NULL;
	}
	memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	for (i = 0; i < end; i++) {
		one_round(fd, memory, number, i);
		if (i % 16 == 0)
			write_synced(name, i / 16);
	}
	munmap(memory, 4096);
	close(fd);
	unlink(name);
	return NULL;
}

static void wait_for(pid_t child, int status)
{
	int got = -1;

	while (waitpid(child, &got, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(got) || WEXITSTATUS(got) != status)
		is_wrong(__LINE__, "a child's end");
}

static void run_true(void)
{
	pid_t child = vfork();

	if (!child) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(3);
	}
	wait_for(child, 0);
}

/* Threads, forks and vforks. */
static void *churn(void *unused)
{
	pthread_t thread;
	pid_t child;
	long i;

	(void)unused;
	for (i = 0;; i++) {
		if (pthread_create(&thread, NULL, worker, (void *)(FROM_OTHER + i % 7)))
			is_wrong(__LINE__, "pthread_create");
		else
			pthread_join(thread, NULL);
		child = fork();
		if (!child) {
			atomic_store(&wrong, 0);
			worker((void *)(long)FROM_OTHER);
			_exit(atomic_load(&wrong) ? 9 : 7);
		}
		wait_for(child, 7);
		run_true();
	}
	return NULL;
}

/* Waits that nothing but their time may end. */
static void *sleeper(void *unused)
{
	int events = epoll_create1(0), ends[2];
	struct epoll_event e = { .events = EPOLLIN };
	struct pollfd p;
	sigset_t all;

	(void)unused;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	if (pipe(ends) || epoll_ctl(events, EPOLL_CTL_ADD, ends[0], &e))
		is_wrong(__LINE__, "a pipe");
	p = (struct pollfd){ ends[0], POLLIN, 0 };
	for (;;) {
		struct timespec t = { 0, 5000000 };

		GOOD(epoll_wait(events, &e, 1, 20) == 0);
		GOOD(nanosleep(&t, NULL) == 0);
		GOOD(poll(&p, 1, 5) == 0);
	}
	return NULL;
}

static __thread volatile sig_atomic_t taken;

/* A wait that a handler ends each time, with EINTR: whoever sends the signals may be kept from it
 * by others for as long as the wait takes, so one in which none was taken says nothing. */
static void *woken(void *unused)
{
	struct timespec t = { 0, LONG_NS };
	sigset_t one;

	(void)unused;
	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	pthread_sigmask(SIG_UNBLOCK, &one, NULL);
	for (;;) {
		int r;

		taken = 0;
		r = nanosleep(&t, NULL);
		if (r != -1 ? taken : errno != EINTR)
			is_wrong(__LINE__, "nanosleep");
	}
	return NULL;
}

static void handler(int signal)
{
	(void)signal;
	taken++;
	atomic_fetch_add(&signals, 1);
}

static void begin_signals(void)
{
	struct sigaction action = { .sa_handler = handler };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	struct itimerspec every = { { 0, TICK_NS }, { 0, TICK_NS } };
	sigset_t one;
	timer_t timer;

	sigaction(SIGUSR1, &action, NULL);
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, NULL);
	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &one, NULL);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &every, NULL);
}

int main(int count, char **arguments)
{
	struct pollfd input = { 0, POLLIN, 0 };
	pthread_t thread, to_wake;
	long i, threads;
	int r = 0;

	if (count < 3)
		return 2;
	directory = arguments[1];
	threads = atol(arguments[2]);
	begin_signals();
	for (i = 0; i < threads; i++)
		pthread_create(&thread, NULL, worker, (void *)i);
	pthread_create(&thread, NULL, churn, NULL);
	pthread_create(&thread, NULL, sleeper, NULL);
	pthread_create(&to_wake, NULL, woken, NULL);
	printf("ready\n");
	fflush(stdout);
	while (r <= 0) {
		r = poll(&input, 1, 50);
		pthread_kill(to_wake, SIGUSR1);
	}
	printf("rounds %ld wrong %ld\n", atomic_load(&rounds), atomic_load(&wrong));
	fflush(stdout);
	_exit(atomic_load(&wrong) ? 1 : 0);
}
