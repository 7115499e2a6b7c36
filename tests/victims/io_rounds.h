/* What the victims share that make one kind of request many times: the second argument names the
 * kind, and words in it say what the file's descriptor and the program are like by then. */
#ifndef IO_ROUNDS_H
#define IO_ROUNDS_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include "victim.h"

#define ROUNDS 131

static int open_for_rounds(const char *kind)
{
	int flags = strstr(kind, "O_DSYNC") ? O_DSYNC : 0;

	return must(open(in_work("rounds"), O_CREAT | O_RDWR | flags, 0600), "open");
}

/* A filter that lets everything pass. */
static void be_filtered(void)
{
	struct sock_filter pass = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { 1, &pass };

	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
	must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), "PR_SET_SECCOMP");
}

/* Between the open and the first round. A signal of the program's own is chosen for readiness:
 * whatever somebody has hidden in the signal's place is lost. */
static void prepare_for_rounds(const char *kind, int fd)
{
	if (strstr(kind, "lost"))
		must(fcntl(fd, F_SETSIG, SIGUSR1), "F_SETSIG");
	if (strstr(kind, "filtered"))
		be_filtered();
}

#endif
