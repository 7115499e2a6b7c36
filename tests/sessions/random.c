/* random DIRECTORY SEED [anew]: a program that SEED has made up: threads that do what they drew,
 * again and again, and check every answer and every time limit.
 *
 * Says "ready", and at the end of its input "rounds N wrong M late L disturbed D": L waits took
 * more than 10 ms longer than their limit, which a busy machine does as well; D said EINTR without
 * a handler. Each wrong answer goes to stderr, and each wait that took two seconds longer, unless
 * limits may begin anew (docs/LIMITS.md).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#ifdef __GLIBC__
#include <ucontext.h>
#endif
#include <unistd.h>

enum {
	MOST_THREADS = 6, PAGE = 4096, DEPTH = 16384, LATE_MS = 10, TOO_LATE_MS = 2000, SENT = 50,
	COROUTINES = 3, COROUTINE_STACK = 8192, GUARD = 4096,
};

static atomic_long rounds, wrong, late, disturbed;
static atomic_int is_over;
static const char *directory;
static pthread_t threads[MOST_THREADS];
static pthread_barrier_t all_are_there;
/* Whether they make processes, or send each other signals: not both. An ignored signal (SIGCHLD)
 * may end another thread's wait while both are traced (docs/LIMITS.md). */
static int thread_count, has_children, limits_begin_anew;

/* What a thread has of its own. */
struct own {
	uint64_t state;
	int number, fd, events, pair[2];
	char *memory;
};

static __thread volatile sig_atomic_t taken;

static void is_wrong(int line, const char *what)
{
	if (atomic_fetch_add(&wrong, 1) < 20)
		fprintf(stderr, "line %d: %s, errno %d\n", line, what, errno);
}

#define GOOD(x) do { if (!(x)) is_wrong(__LINE__, #x); } while (0)

static uint64_t draw(struct own *o, uint64_t below)
{
	o->state ^= o->state << 13;
	o->state ^= o->state >> 7;
	o->state ^= o->state << 17;
	return o->state % below;
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static struct timespec of_ms(long ms)
{
	return (struct timespec){ ms / 1000, ms % 1000 * 1000000 };
}

static void is_off(int line, const char *what, int64_t took, long ms)
{
	is_wrong(line, what);
	fprintf(stderr, "it took %lld us, of %ld ms\n", (long long)took / 1000, ms);
}

/* A wait of MS that nothing ended but its time, or that a handler did (EINTR). */
static void ended(int line, const char *what, int64_t begin, long ms, int was_interrupted)
{
	int64_t took = now() - begin;

	/* What counts in milliseconds may count from the one that has begun. */
	if (!was_interrupted && took < (ms - 1) * 1000000LL)
		is_off(line, what, took, ms);
	if (was_interrupted && !taken)
		atomic_fetch_add(&disturbed, 1);
	if (took > (ms + LATE_MS) * 1000000LL)
		atomic_fetch_add(&late, 1);
	/* Some functions (musl's sigtimedwait) wait anew behind a handler. */
	if (took > (ms + TOO_LATE_MS) * 1000000LL && !limits_begin_anew && !taken)
		is_off(line, what, took, ms);
}

/* X waits for MS: then it returns R, with errno E where that is -1. */
#define WAITS(x, r, e) \
	do { \
		int64_t begin = now(); \
		long got; \
		taken = 0; \
		errno = 0; \
		got = (x); \
		if (got == -1 && errno == EINTR) \
			ended(__LINE__, #x, begin, ms, 1); \
		else if (got == (r) && (got != -1 || errno == (e))) \
			ended(__LINE__, #x, begin, ms, 0); \
		else \
			is_wrong(__LINE__, #x); \
	} while (0)

static void do_syncs(struct own *o)
{
	char byte = (char)draw(o, 256), back;
	off_t at = (off_t)draw(o, PAGE);

	GOOD(pwrite(o->fd, &byte, 1, at) == 1 && pread(o->fd, &back, 1, at) == 1 && back == byte);
	GOOD(fsync(o->fd) == 0 && fdatasync(o->fd) == 0);
	o->memory[at] = byte;
	GOOD(msync(o->memory, PAGE, MS_SYNC) == 0);
	GOOD(sync_file_range(o->fd, 0, 0, SYNC_FILE_RANGE_WRITE) == 0);
	GOOD(fsync(-1) == -1 && errno == EBADF);
	GOOD(fsync(o->pair[0]) == -1 && errno == EINVAL);
	GOOD(msync(o->memory + 1, 10, MS_SYNC) == -1 && errno == EINVAL);
	GOOD(syscall(SYS_fdatasync, o->fd) == 0);
}

static void do_waits(struct own *o)
{
	long ms = draw(o, 4) ? 1 + (long)draw(o, 40) : 100 + (long)draw(o, 400);
	struct timespec limit = of_ms(ms), left = limit;
	struct epoll_event event;
	sigset_t none, one;

	sigemptyset(&none);
	sigemptyset(&one);
	sigaddset(&one, SIGRTMAX);
	switch (draw(o, 8)) {
	case 0: WAITS(epoll_wait(o->events, &event, 1, (int)ms), 0, 0); break;
	case 1: WAITS(poll(NULL, 0, (int)ms), 0, 0); break;
	case 2: WAITS(ppoll(NULL, 0, &limit, NULL), 0, 0); break;
	case 3: WAITS(nanosleep(&limit, &left), 0, 0); break;
	case 4: WAITS(sigtimedwait(&one, NULL, &limit), -1, EAGAIN); break;
	case 5: WAITS(select(0, NULL, NULL, NULL, &(struct timeval){ 0, ms * 1000 }), 0, 0); break;
	case 6: WAITS(epoll_pwait(o->events, &event, 1, (int)ms, &none), 0, 0); break;
	default: {
		int id = semget(IPC_PRIVATE, 1, 0600);
		struct sembuf less = { 0, -1, 0 };

		WAITS(semtimedop(id, &less, 1, &limit), -1, EAGAIN);
		semctl(id, 0, IPC_RMID);
	}
	}
}

/* What is sent arrives whole, whatever disturbs whoever waits for it. */
static void do_sends(struct own *o)
{
	char sent[SENT], got[SENT];

	memset(sent, (int)draw(o, 256), sizeof sent);
	GOOD(send(o->pair[0], sent, sizeof sent, 0) == SENT);
	GOOD(recv(o->pair[1], got, sizeof got, 0) == SENT && !memcmp(sent, got, SENT));
}

static void do_numbers(struct own *o)
{
	int high = 100 + o->number * 20 + (int)draw(o, 10);

	GOOD(dup2(o->fd, high) == high);
	GOOD(fsync(high) == 0);
	GOOD(close(high) == 0);
	GOOD(fsync(high) == -1 && errno == EBADF);
}

static void do_processes(struct own *o)
{
	int status = -1, is_vfork = (int)draw(o, 2);
	pid_t child = is_vfork ? vfork() : fork();

	if (!child) {
		if (is_vfork) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(3);
		}
		_exit(fsync(o->fd) ? 9 : 0);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	GOOD(child > 0 && status == 0);
}

static void do_memory(struct own *o)
{
	unsigned char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				   -1, 0);

	GOOD(page != MAP_FAILED);
	page[7] = (unsigned char)o->number;
	GOOD(mprotect(page, PAGE, PROT_READ | PROT_EXEC) == 0 && page[7] == o->number);
	GOOD(msync(page, PAGE, MS_SYNC) == 0);
	GOOD(munmap(page, PAGE) == 0);
}

/* Deep below the caller, and what lies beside it, is as it was. */
static __attribute__((noinline)) void do_deep(struct own *o)
{
	unsigned char kept[DEPTH];

	memset(kept, o->number + 1, sizeof kept);
	__asm__ volatile("" : : "r"(kept) : "memory");
	GOOD(fsync(o->fd) == 0);
	for (int k = 0; k < DEPTH; k++)
		if (kept[k] != o->number + 1) {
			is_wrong(__LINE__, "the stack");
			break;
		}
}

/* A library comes and goes: the dynamic linker's calls, and other code for a moment. */
extern void *dlopen(const char *, int) __attribute__((weak));

static void do_library(struct own *o)
{
	void *library;

	if (!dlopen || draw(o, 8))
		return;
	library = dlopen("libnss_files.so.2", RTLD_NOW | RTLD_LOCAL);
	GOOD(!library || dlclose(library) == 0);
}

#ifdef __GLIBC__
/* Requests and waits on stacks that are hardly larger than a signal's, side by side, with what is
 * somebody else's in between. */
struct coroutines {
	unsigned char memory[COROUTINES][GUARD + COROUTINE_STACK];
	ucontext_t of[COROUTINES], caller;
	struct own *own;
};
static __thread struct coroutines *coroutines;

static void in_coroutine(int k)
{
	struct coroutines *c = coroutines;
	struct own *o = c->own;
	struct epoll_event event;

	GOOD(fsync(o->fd) == 0);
	swapcontext(&c->of[k], k + 1 < COROUTINES ? &c->of[k + 1] : &c->caller);
	GOOD(epoll_wait(o->events, &event, 1, 1) == 0 || (errno == EINTR && taken));
	GOOD(msync(o->memory, PAGE, MS_SYNC) == 0);
	swapcontext(&c->of[k], k + 1 < COROUTINES ? &c->of[k + 1] : &c->caller);
}

/* Signals are blocked: their handlers would need more than there is. */
static void do_coroutines(struct own *o)
{
	struct coroutines *c = coroutines ? coroutines : malloc(sizeof *c);
	sigset_t all, before;

	coroutines = c;
	c->own = o;
	memset(c->memory, 0xa5, sizeof c->memory);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (int k = 0; k < COROUTINES; k++) {
		getcontext(&c->of[k]);
		c->of[k].uc_stack.ss_sp = c->memory[k] + GUARD;
		c->of[k].uc_stack.ss_size = COROUTINE_STACK;
		c->of[k].uc_link = NULL;
		makecontext(&c->of[k], (void (*)(void))in_coroutine, 1, k);
	}
	swapcontext(&c->caller, &c->of[0]);
	swapcontext(&c->caller, &c->of[0]);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	for (int k = 0; k < COROUTINES; k++)
		for (int at = 0; at < GUARD; at++)
			if (c->memory[k][at] != 0xa5) {
				is_wrong(__LINE__, "below a coroutine's stack");
				return;
			}
}
#else
static void do_coroutines(struct own *o) { (void)o; }
#endif

static void do_signal(struct own *o)
{
	int to = (int)draw(o, (uint64_t)thread_count);
	int error = pthread_kill(threads[to], draw(o, 2) ? SIGUSR1 : SIGUSR2);

	errno = error;
	GOOD(error == 0 || is_over);
}

static void handler(int signal)
{
	int error = errno;

	(void)signal;
	taken = 1;
	errno = error;
}

static void *live(void *of)
{
	struct own *o = of;
	/* What it does more often than others, which is its nature. */
	uint64_t likes = draw(o, 9);

	pthread_barrier_wait(&all_are_there);
	while (!atomic_load(&is_over)) {
		uint64_t what = draw(o, 3) ? draw(o, 9) : likes;

		switch (what) {
		case 0: do_syncs(o); break;
		case 1: do_waits(o); break;
		case 2: do_sends(o); break;
		case 3: do_numbers(o); break;
		case 4: has_children ? do_processes(o) : do_signal(o); break;
		case 5: do_memory(o); break;
		case 6: do_library(o); break;
		case 7: do_coroutines(o); break;
		default: do_deep(o);
		}
		atomic_fetch_add(&rounds, 1);
	}
	return NULL;
}

static void begin(struct own *o, int number, uint64_t seed)
{
	char name[512];

	o->number = number;
	o->state = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)number * 0xbf58476d1ce4e5b9u;
	snprintf(name, sizeof name, "%s/random%d", directory, number);
	o->fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (o->fd < 0 || ftruncate(o->fd, PAGE) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, o->pair))
		exit(1);
	o->events = epoll_create1(EPOLL_CLOEXEC);
	o->memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd, 0);
}

int main(int count, char **words)
{
	static struct own own[MOST_THREADS];
	struct sigaction action = { .sa_handler = handler };
	sigset_t set;
	char byte;
	long r;

	if (count < 3)
		return 2;
	directory = words[1];
	limits_begin_anew = count > 3;
	uint64_t seed = strtoull(words[2], NULL, 10);
	thread_count = 1 + (int)(seed % MOST_THREADS);
	has_children = (int)(seed / MOST_THREADS % 2);
	sigaction(SIGUSR1, &action, NULL);
	action.sa_flags = SA_RESTART;
	sigaction(SIGUSR2, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGRTMAX);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	/* The first thread only listens. */
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGUSR2);
	for (int k = 0; k < thread_count; k++)
		begin(&own[k], k, seed);
	/* And whoever makes them: musl tells a thread's name behind its begin. */
	pthread_barrier_init(&all_are_there, NULL, (unsigned)thread_count + 1);
	for (int k = 0; k < thread_count; k++)
		if (pthread_create(&threads[k], NULL, live, &own[k]))
			return 1;
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	pthread_barrier_wait(&all_are_there);
	printf("ready\n");
	fflush(stdout);
	while ((r = read(0, &byte, 1)) > 0)
		;
	if (r)
		is_wrong(__LINE__, "read");
	atomic_store(&is_over, 1);
	for (int k = 0; k < thread_count; k++)
		pthread_join(threads[k], NULL);
	printf("rounds %ld wrong %ld late %ld disturbed %ld\n", atomic_load(&rounds),
	       atomic_load(&wrong), atomic_load(&late), atomic_load(&disturbed));
	return 0;
}
