/* POSIX AIO: aio_fsync behind queued writes, with every notification, and what it refuses. */
#include "victim.h"

#include <aio.h>
#include <pthread.h>

#define WRITES 23

static volatile sig_atomic_t signalled;
static int told[2]; /* a pipe: the thread that is told writes here */

static void on_signal(int number, siginfo_t *info, void *context)
{
	(void)number, (void)context;
	signalled = info->si_code == SI_ASYNCIO ? info->si_value.sival_int : -1;
}

static void on_thread(union sigval value)
{
	char byte = (char)value.sival_int;

	if (write(told[1], &byte, 1) != 1)
		abort();
}

static void finish(const char *name, struct aiocb *block)
{
	const struct aiocb *list[] = { block };

	for (int i = 0; i < 5000 && aio_error(block) == EINPROGRESS; i++)
		if (aio_suspend(list, 1, &(struct timespec){ 1, 0 }) && errno != EINTR && errno != EAGAIN)
			break;
	CALL("aio_error", name, aio_error(block));
	CALL("aio_return", name, aio_return(block));
}

static void queue(const char *name, int op, struct aiocb *block)
{
	errno = UNTOUCHED;
	int result = aio_fsync(op, block), error = errno;

	show("aio_fsync", name, result, result ? error : 0);
	if (!result)
		finish(name, block);
}

static void kinds_of_descriptor(void)
{
	open_kinds();
	EACH_KIND(k) {
		struct aiocb block = { .aio_fildes = k->fd };

		queue(k->name, O_SYNC, &block);
	}
}

static void behind_writes(int fd)
{
	static struct aiocb writes[WRITES], last;
	int all_done = 1;

	for (int i = 0; i < WRITES; i++) {
		writes[i] = (struct aiocb){ .aio_fildes = fd, .aio_buf = "abcdefg", .aio_nbytes = 7,
					    .aio_offset = i * 7 };
		must(aio_write(&writes[i]), "aio_write");
	}
	last = (struct aiocb){ .aio_fildes = fd };
	queue("behind writes", O_DSYNC, &last);
	for (int i = 0; i < WRITES; i++)
		all_done &= aio_error(&writes[i]) == 0 && aio_return(&writes[i]) == 7;
	printf("all writes were done before: %d\n", all_done);
}

static void notifications(int fd)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART };
	struct aiocb block = { .aio_fildes = fd };
	struct pollfd wait;
	char byte = 0;

	must(pipe(told), "pipe");
	sigaction(SIGUSR1, &action, NULL);
	block.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
	block.aio_sigevent.sigev_signo = SIGUSR1;
	block.aio_sigevent.sigev_value.sival_int = 29;
	queue("with a signal", O_SYNC, &block);
	for (int ms = 0; !signalled && ms < 5000; ms++)
		nap_ms(1);
	printf("the signal brought %d\n", (int)signalled);

	block = (struct aiocb){ .aio_fildes = fd };
	block.aio_sigevent.sigev_notify = SIGEV_THREAD;
	block.aio_sigevent.sigev_notify_function = on_thread;
	block.aio_sigevent.sigev_value.sival_int = 31;
	queue("with a thread", O_DSYNC, &block);
	wait = (struct pollfd){ .fd = told[0], .events = POLLIN };
	if (poll(&wait, 1, 5000) == 1)
		must((int)read(told[0], &byte, 1), "read");
	printf("the thread brought %d\n", byte);
}

int main(int count, char **arguments)
{
	struct aiocb block = { 0 };

	begin(count, arguments);
	kinds_of_descriptor();
	block.aio_fildes = kinds[0].fd;
	queue("op 0", 0, &block);
	queue("op O_RDWR", O_RDWR, &block);
	queue("op -1", -1, &block);
	for (int i = 0; i < 23; i++) {
		block = (struct aiocb){ .aio_fildes = kinds[0].fd };
		queue("again", i % 2 ? O_SYNC : O_DSYNC, &block);
	}
#ifdef __GLIBC__
	struct aiocb64 wide = { .aio_fildes = kinds[0].fd };

	CALL("aio_fsync64", "file", aio_fsync64(O_SYNC, &wide));
	for (int ms = 0; aio_error64(&wide) == EINPROGRESS && ms < 5000; ms++)
		nap_ms(1);
	CALL("aio_return64", "file", aio_return64(&wide));
#endif
	behind_writes(kinds[0].fd);
	notifications(kinds[0].fd);
	return 0;
}
