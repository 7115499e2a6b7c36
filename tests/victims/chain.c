/* Syncs 23 times, then becomes the program in its further arguments: for trees of several kinds. */
#include "victim.h"

int main(int count, char **arguments)
{
	int good = 0, fd;

	begin(count, arguments);
	fd = make_file("file", O_RDWR);
	for (int i = 0; i < 23; i++) {
		errno = UNTOUCHED;
		good += fsync(fd) == 0 && errno == UNTOUCHED;
	}
	printf("%d bit: %d good, a bad one: %d\n", (int)sizeof(void *) * 8, good, fsync(-1));
	fflush(stdout);
	close(fd);
	if (count > 2)
		execv(arguments[2], arguments + 2);
	return count > 2 ? 99 : 0;
}
