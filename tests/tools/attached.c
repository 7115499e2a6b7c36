/* Runs a victim that is attached while it stands at its begin.
 *
 *   attached SYNCLATER DIAL VICTIM ARGUMENT...
 *
 * The victim stops itself (STOP=1, victim.h). Ends as the victim does; with 120 and a line on
 * stderr where it could not be attached.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs a command; what it prints, up to the first colon, goes to WORD. Returns its status. */
static int run(char *const *words, char word[64])
{
	int out[2], status = -1;
	ssize_t n = 0;
	pid_t child;

	if (pipe(out) || (child = fork()) < 0)
		return -1;
	if (!child) {
		dup2(out[1], 1);
		close(out[0]);
		close(out[1]);
		execv(words[0], words);
		_exit(127);
	}
	close(out[1]);
	n = read(out[0], word, 63);
	word[n > 0 ? n : 0] = 0;
	word[strcspn(word, ":")] = 0;
	waitpid(child, &status, 0);
	close(out[0]);
	return status;
}

int main(int count, char **arguments)
{
	char number[16], session[64], rest[64];
	pid_t victim;
	int status;

	if (count < 4)
		return 2;
	victim = fork();
	if (!victim) {
		setenv("STOP", "1", 1);
		execv(arguments[3], arguments + 3);
		_exit(127);
	}
	if (waitpid(victim, &status, WUNTRACED) != victim || !WIFSTOPPED(status)) {
		fprintf(stderr, "attached: the victim did not stop: %x\n", status);
		return 120;
	}
	snprintf(number, sizeof number, "%d", victim);
	if (run((char *[]){ arguments[1], "attach", "--until", arguments[2], "--pid", number, NULL },
		session)) {
		fprintf(stderr, "attached: %s\n", session);
		kill(victim, SIGKILL);
		return 120;
	}
	kill(victim, SIGCONT);
	waitpid(victim, &status, 0);
	/* It may have ended by itself, with its process. */
	if (!freopen("/dev/null", "w", stderr))
		return 120;
	run((char *[]){ arguments[1], "detach", session, NULL }, rest);
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	signal(WTERMSIG(status), SIG_DFL);
	kill(getpid(), WTERMSIG(status));
	return 120;
}
