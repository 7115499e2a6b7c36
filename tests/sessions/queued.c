/* queued: takes signals that are queued to it, each with a number, one behind the other. Says
 * "ready", and at the end of its input "taken N lost M", where M numbers were left out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int taken, lost, next;

static void take(int number, siginfo_t *info, void *context)
{
	int is = info->si_value.sival_int;

	(void)number;
	(void)context;
	lost += is - next;
	next = is + 1;
	taken++;
}

/* Until it is told to end. */
static void queue_all(pid_t to)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int n = 0;; n++) {
		union sigval value = { .sival_int = n };

		while (sigqueue(to, SIGRTMIN + 3, value))
			if (errno != EAGAIN)
				_exit(1);
		usleep(50);
	}
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = take, .sa_flags = SA_SIGINFO | SA_RESTART };
	pid_t us = getpid(), child;
	char line[20];

	sigaction(SIGRTMIN + 3, &action, NULL);
	child = fork();
	if (child < 0)
		return 1;
	if (!child)
		queue_all(us);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		;
	/* Killed between two. */
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	printf("taken %d lost %d\n", taken, lost);
	return 0;
}
