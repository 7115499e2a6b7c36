/* A tree of processes three levels deep, each of which syncs before and after it forks. */
#include "victim.h"

#define LEVELS   3
#define CHILDREN 3
#define REQUESTS 23

static int fd;

/* How many requests of this process and its descendants were answered rightly. */
static int grow(int level)
{
	int good = 0, from_child[2];

	for (int i = 0; i < REQUESTS; i++) {
		errno = UNTOUCHED;
		good += fsync(fd) == 0 && errno == UNTOUCHED;
	}
	must(pipe(from_child), "pipe");
	for (int i = 0; level && i < CHILDREN; i++) {
		if (must(fork(), "fork") == 0) {
			int below = grow(level - 1);

			must((int)write(from_child[1], &below, sizeof below), "write");
			_exit(0);
		}
	}
	close(from_child[1]);
	for (int below; level && read(from_child[0], &below, sizeof below) == sizeof below;)
		good += below;
	close(from_child[0]);
	while (wait(NULL) > 0)
		;
	good += fdatasync(fd) == 0;
	return good;
}

/* A grandchild that outlives its parent, as daemons do. */
static void orphan(void)
{
	int done[2];
	char byte = '?';

	must(pipe(done), "pipe");
	if (must(fork(), "fork") == 0) {
		setsid();
		if (must(fork(), "fork"))
			_exit(0);
		byte = fsync(fd) == 0 && fsync(999) == -1 && errno == EBADF ? '+' : '-';
		must((int)write(done[1], &byte, 1), "write");
		_exit(0);
	}
	wait(NULL);
	must((int)read(done[0], &byte, 1), "read");
	printf("the orphan: %c\n", byte);
}

int main(int count, char **arguments)
{
	begin(count, arguments);
	fd = make_file("file", O_RDWR);
	printf("good answers: %d\n", grow(LEVELS));
	orphan();
	return 0;
}
