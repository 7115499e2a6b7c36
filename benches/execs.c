/* What an exec, a fork and a signal take: execs exec|clean|fork|signal N.
 *
 * Prints the nanoseconds of one. `exec` executes itself N times, `clean` with an empty environment;
 * `fork` makes children that end at once; `signal` sends itself one that it handles.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void nothing(int signal) { (void)signal; }

static void tell(long long begun, long n)
{
	printf("%lld\n", (now() - begun) / n);
	fflush(stdout);
}

/* ARGUMENTS[2] is how many are left, [3] when it began, [4] how many there are in all. */
static int execute(char **arguments)
{
	long left = atol(arguments[2]);
	char number[24], begun[24], *none[] = { NULL };
	char *next[] = { arguments[0], arguments[1], number, begun, NULL, NULL };

	if (!arguments[3]) {
		snprintf(begun, sizeof begun, "%lld", now());
		next[4] = arguments[2];
	} else {
		snprintf(begun, sizeof begun, "%s", arguments[3]);
		next[4] = arguments[4];
	}
	if (!left) {
		tell(atoll(begun), atol(next[4]));
		return 0;
	}
	snprintf(number, sizeof number, "%ld", left - 1);
	execve("/proc/self/exe", next, strcmp(arguments[1], "clean") ? environ : none);
	return 1;
}

int main(int count, char **arguments)
{
	long n = count > 2 ? atol(arguments[2]) : 0, i;
	long long begun = now();

	if (n < 1 && count < 5)
		return 2;
	if (!strcmp(arguments[1], "exec") || !strcmp(arguments[1], "clean"))
		return execute(arguments);
	signal(SIGUSR1, nothing);
	for (i = 0; i < n; i++) {
		if (!strcmp(arguments[1], "signal")) {
			raise(SIGUSR1);
		} else {
			pid_t child = fork();

			if (!child)
				_exit(0);
			waitpid(child, NULL, 0);
		}
	}
	tell(begun, n);
	return 0;
}
