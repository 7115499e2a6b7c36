/* Executes a program behind a seccomp filter.
 *
 *   sandboxed FILTER PROGRAM ARGUMENTS...
 *
 * FILTER is a file of instructions of classic BPF (struct sock_filter), for a call of either word
 * size.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	static struct sock_filter code[4096];
	struct sock_fprog filter = { 0, code };
	int fd = count > 2 ? open(arguments[1], O_RDONLY | O_CLOEXEC) : -1;
	ssize_t n = read(fd, code, sizeof code);

	if (n <= 0 || n % (ssize_t)sizeof code[0])
		return fprintf(stderr, "%s: %s\n", arguments[1], strerror(errno)), 2;
	filter.len = (unsigned short)((size_t)n / sizeof code[0]);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		return fprintf(stderr, "prctl: %s\n", strerror(errno)), 2;
	execv(arguments[2], arguments + 2);
	return fprintf(stderr, "%s: %s\n", arguments[2], strerror(errno)), 2;
}
