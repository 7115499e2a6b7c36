/* Processes that sync while their ancestors end: orphans DIRECTORY COUNT DEPTH.
 *
 * COUNT times, one after the other, DEPTH processes fork one another, and the last one syncs a file
 * there while the others end. It ends with status 1 where one could not.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* So that they end at any moment of what the last one does. */
static void spin(int rounds)
{
	for (volatile int k = rounds; k > 0; k--)
		;
}

static int sync_some(int fd, int begun, int ended)
{
	char done = 0;

	close(begun); /* the others go on */
	for (int k = 0; k < 3; k++)
		done |= pwrite(fd, "a", 1, k) != 1 || fsync(fd);
	return write(ended, &done, 1) != 1;
}

int main(int count, char **arguments)
{
	int ended[2], failed = 0, fd;

	if (count != 4 || chdir(arguments[1]) || pipe(ended))
		return 2;
	fd = open("orphans", O_CREAT | O_RDWR, 0600);
	for (int i = 0; i < atoi(arguments[2]); i++) {
		int begun[2];
		char done = 1;

		if (pipe(begun))
			return 2;
		if (!fork()) {
			for (int depth = atoi(arguments[3]); depth > 0; depth--)
				if (fork()) {
					close(begun[1]);
					spin(read(begun[0], &done, 1) ? 0 : rand() % 50000);
					_exit(0);
				} else {
					srand(i * 64 + depth);
				}
			_exit(sync_some(fd, begun[1], ended[1]));
		}
		close(begun[0]);
		close(begun[1]);
		failed |= read(ended[0], &done, 1) != 1 || done;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	return failed;
}
