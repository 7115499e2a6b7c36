/* What a program can see of a descriptor opened with O_SYNC or O_DSYNC. */
#ifndef DESCRIPTOR_H
#define DESCRIPTOR_H

#include "victim.h"

#define F_SETSIG_ 10
#define F_GETSIG_ 11

/* O_CLOEXEC shows in F_GETFD only, O_LARGEFILE is the libc's own matter. */
#define VISIBLE (O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME | O_PATH | SYNCS)

static inline void look_at(const char *which, int fd)
{
	errno = UNTOUCHED;
	int flags = fcntl(fd, F_GETFL), error = errno;

	printf("%s: F_GETFL %o (%s) errno=%d", which, flags < 0 ? flags : flags & VISIBLE,
	       flags < 0                   ? "none" :
	       (flags & O_SYNC) == O_SYNC ? "O_SYNC" :
	       flags & O_DSYNC             ? "O_DSYNC" : "no sync",
	       error);
	errno = UNTOUCHED;
	printf(" F_GETFD %d F_GETSIG %d", fcntl(fd, F_GETFD), fcntl(fd, F_GETSIG_));
	printf(" errno=%d at %ld\n", errno, (long)lseek(fd, 0, SEEK_CUR));
}

/* Looks at a fresh descriptor, writes, looks again, closes it. */
static inline void use(const char *which, int fd)
{
	if (fd < 0)
		return;
	look_at(which, fd);
	CALL("  write 5", which, write(fd, "bytes", 5));
	CALL("  write 0", which, write(fd, "", 0));
	look_at(which, fd);
	CALL("  fsync", which, fsync(fd));
	CALL("  close", which, close(fd));
}

#endif
