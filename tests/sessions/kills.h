/* A filter that kills at calls which fsync does not make, and a preloaded library might. */
#ifndef KILLS_H
#define KILLS_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KILLED(call)                                           \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static struct sock_filter kills[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	KILLED(sync_file_range),
	KILLED(statx),
	KILLED(getpid),
	KILLED(readlinkat),
	KILLED(clock_gettime),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

/* Puts it in; what seccomp(2) answers. */
static int filters(unsigned flags)
{
	struct sock_fprog program = { sizeof kills / sizeof *kills, kills };

	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

#endif
