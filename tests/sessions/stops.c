/* Programs that are stopped soon after they were executed: stops ROUNDS STEP COMMAND [ARGUMENT...].
 *
 * In round k SIGSTOP comes k * STEP microseconds after the fork. From then on the child must stand
 * still until it is killed. Prints how many did not.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void wait_for(long us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };

	while (nanosleep(&t, &t))
		;
}

/* The state of a process: a letter (proc(5)). */
static char state(pid_t pid)
{
	char path[40], text[512], *end;
	ssize_t n;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY);
	n = read(fd, text, sizeof text - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	end = strrchr(text, ')');
	return end ? end[2] : '?';
}

int main(int count, char **arguments)
{
	long rounds = count > 3 ? atol(arguments[1]) : 0, step = count > 3 ? atol(arguments[2]) : 0;
	int wrong = 0, status, look;

	for (long k = 0; k < rounds; k++) {
		pid_t child = fork();

		if (!child) {
			execv(arguments[3], arguments + 3);
			_exit(127);
		}
		wait_for(k * step);
		kill(child, SIGSTOP);
		if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) {
			wrong++;
			continue;
		}
		for (look = 0; look < 10; look++) {
			wait_for(500);
			if (!strchr("Tt", state(child)))
				break;
		}
		wrong += look < 10;
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
	}
	printf("wrong %d\n", wrong);
	return wrong != 0;
}
