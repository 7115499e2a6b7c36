/* RWF_DSYNC and RWF_SYNC for a file that takes neither, and takes other writes. */
#include "victim.h"

static long write_at_place(int fd, const struct iovec *iov, int flags)
{
	return syscall(SYS_pwritev2, fd, iov, 1, -1l, -1l, flags);
}

int main(int count, char **arguments)
{
	static struct iovec name = { "changed", 7 };
	char now[32] = "";
	int fd;

	begin(count, arguments);
	fd = must(open("/proc/self/comm", O_RDWR), "/proc/self/comm");
	CALL("pwritev2", "RWF_DSYNC", write_at_place(fd, &name, RWF_DSYNC_));
	CALL("pwritev2", "RWF_SYNC", write_at_place(fd, &name, RWF_SYNC_));
	must((int)read(fd, now, sizeof now - 1), "its name");
	printf("it is called %s", now);
	return 0;
}
