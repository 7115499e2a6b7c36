/* Closes: of every kind of descriptor, twice, of copies; what a close lets go; and aio under way,
 * which musl cancels at a close and glibc does not. */
#include "victim.h"

#include <aio.h>
#include <pthread.h>

/* The lock on a file goes with the first descriptor of it that is closed. */
static void lets_locks_go(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = make_file("locked", O_RDWR), other = dup(fd), status;

	CALL("F_SETLK", "locked", fcntl(fd, F_SETLK, &lock));
	for (int round = 0; round < 2; round++) {
		pid_t child = must(fork(), "fork");

		if (child == 0)
			_exit(fcntl(fd, F_SETLK, &lock) == 0);
		must(waitpid(child, &status, 0), "waitpid");
		printf("another process could lock it: %d\n", WEXITSTATUS(status));
		if (!round)
			CALL("close", "a copy", close(other));
	}
	close(fd);
}

static void ends_pipes(void)
{
	int pair[2];
	char byte;

	must(pipe(pair), "pipe");
	CALL("close", "the end to write", close(pair[1]));
	CALL("read", "until the end", read(pair[0], &byte, 1));
	CALL("close", "the end to read", close(pair[0]));
}

/* The number is free at once. */
static void frees_numbers(void)
{
	for (int k = 0; k < 100; k++) {
		int fd = open(in_work("file"), O_CREAT | O_RDWR, 0600), again;

		close(fd);
		again = open(in_work("file"), k & 1 ? O_RDONLY : O_WRONLY);
		if (fd < 0 || again != fd)
			printf("round %d: %d, then %d\n", k, fd, again);
		close(again);
	}
	printf("a hundred numbers used twice\n");
}

static void with_aio(void)
{
	static char byte;
	struct aiocb block = { .aio_buf = &byte, .aio_nbytes = 1 };
	const struct aiocb *list[] = { &block };
	const struct timespec moment = { 0, 23000000 };
	int pair[2];

	must(pipe(pair), "pipe");
	block.aio_fildes = pair[0];
	must(aio_read(&block), "aio_read");
	nap_ms(23); /* until it waits, most likely */
	/* What musl does inside touches errno. */
	printf("close with a read under way: %d\n", close(pair[0]));
	aio_suspend(list, 1, &moment);
	printf("the read is cancelled: %d\n", aio_error(&block) == ECANCELED);
	write(pair[1], "b", 1);
	for (int k = 0; k < 200 && aio_error(&block) == EINPROGRESS; k++)
		nap_ms(5);
	close(pair[1]);
}

static void *close_all(void *first)
{
	for (int fd = *(int *)first; fd < *(int *)first + 64; fd++)
		close(fd);
	return NULL;
}

static void from_threads(void)
{
	int first = must(fcntl(0, F_DUPFD, 100), "dup"), k;
	pthread_t threads[4];

	for (k = 1; k < 64; k++)
		must(dup2(0, first + k), "dup2");
	for (k = 0; k < 4; k++)
		pthread_create(&threads[k], NULL, close_all, &first);
	for (k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	CALL("F_GETFD", "closed by a thread", fcntl(first + 63, F_GETFD));
}

int main(int count, char **arguments)
{
	begin(count, arguments);
	open_kinds();
	EACH_KIND(k) {
		CALL("close", k->name, close(k->fd));
		CALL("close again", k->name, close(k->fd));
	}
	CALL("syscall close", "a copy", syscall(SYS_close, dup(0)));
	CALL("syscall close", "closed", syscall(SYS_close, 999));
	lets_locks_go();
	ends_pipes();
	frees_numbers();
	with_aio();
	from_threads();
	return 0;
}
