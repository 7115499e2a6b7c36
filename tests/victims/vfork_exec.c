/* vfork, posix_spawn and exec: the child syncs in the image that it is given. */
#include "victim.h"

#include <spawn.h>

extern char **environ;

static void reap(const char *how, pid_t child)
{
	int status = -1;

	waitpid(child, &status, 0);
	printf("%s: the child ended with %d\n", how, status);
}

int main(int count, char **arguments)
{
	char *copy[] = { arguments[0], arguments[1], "copy", NULL };
	int fd;
	pid_t child;

	begin(count, arguments);
	fd = make_file("file", O_RDWR);
	if (count > 2) {
		for (int i = 0; i < 23; i++)
			CALL("fsync", "in the copy", fsync(fd));
		CALL("fsync", "in the copy, closed", fsync(999));
		return 23;
	}
	for (int i = 0; i < 11; i++) {
		CALL("fsync", "before", fsync(fd));
		child = vfork();
		if (child == 0) {
			fsync(fd);
			execv(copy[0], copy);
			_exit(99);
		}
		reap("vfork", child);
		must(-posix_spawn(&child, copy[0], NULL, NULL, copy, environ), "posix_spawn");
		reap("posix_spawn", child);
		CALL("fsync", "after", fsync(fd));
	}
	child = vfork();
	if (child == 0) {
		execl(in_work("missing"), "missing", NULL);
		_exit(7);
	}
	reap("a missing program", child);
	CALL("fsync", "at the end", fsync(fd));
	fflush(stdout);
	execv(copy[0], copy);
	return 99;
}
