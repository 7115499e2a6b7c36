/* pwritev2 with RWF_DSYNC and RWF_SYNC; a libc without it is called through syscall(). */
#include "victim.h"

static char bytes[64] = "what is to be written";
static struct iovec two[] = { { bytes, 7 }, { bytes + 7, 16 } };

static long by_number(int fd, const struct iovec *iov, int n, int64_t at, int flags)
{
#if __SIZEOF_LONG__ == 8
	return syscall(SYS_pwritev2, fd, iov, n, at, at >> 32, flags);
#else
	return syscall(SYS_pwritev2, fd, iov, n, (long)at, (long)(at >> 32), flags);
#endif
}

#ifdef __GLIBC__
#define BY_NAME pwritev2
#define BY_LONG_NAME pwritev64v2
#else
#define BY_NAME by_number
#define BY_LONG_NAME by_number
#endif

static void all_flags(const char *name, int fd)
{
	static const int flags_of[] = { 0, 2, 4, 6, 2 | 16, 4 | 8, 1 << 20, -1 };

	for (unsigned i = 0; i < ARRAY_LEN(flags_of); i++) {
		char argument[64];

		snprintf(argument, sizeof argument, "%s, flags %d", name, flags_of[i]);
		CALL("pwritev2", argument, BY_NAME(fd, two, 2, 4096, flags_of[i]));
		CALL("pwritev2 at -1", argument, BY_NAME(fd, two, 2, -1, flags_of[i]));
		CALL("pwritev64v2", argument, BY_LONG_NAME(fd, two, 2, 4096, flags_of[i]));
		CALL("by number", argument, by_number(fd, two, 2, 4096, flags_of[i]));
	}
	printf("%s: the place is %ld\n", name, (long)lseek(fd, 0, SEEK_CUR));
}

static void wrong_arguments(int fd)
{
	CALL("pwritev2", "at -2", BY_NAME(fd, two, 2, -2, RWF_DSYNC_));
	CALL("pwritev2", "beyond 4 GiB", BY_LONG_NAME(fd, two, 2, 1ll << 33, RWF_SYNC_));
	CALL("pwritev2", "count 0", BY_NAME(fd, two, 0, 0, RWF_DSYNC_));
	CALL("pwritev2", "count -1", BY_NAME(fd, two, -1, 0, RWF_DSYNC_));
	CALL("pwritev2", "count 1025", BY_NAME(fd, two, 1025, 0, RWF_DSYNC_));
	CALL("pwritev2", "nowhere", BY_NAME(fd, NOWHERE, 2, 0, RWF_DSYNC_));
	two[1].iov_base = NOWHERE;
	CALL("pwritev2", "second nowhere", BY_NAME(fd, two, 2, 0, RWF_DSYNC_));
	two[0].iov_base = NOWHERE;
	CALL("pwritev2", "both nowhere", BY_NAME(fd, two, 2, 0, RWF_SYNC_));
}

int main(int count, char **arguments)
{
	struct stat s;

	begin(count, arguments);
	open_kinds();
	EACH_KIND(k)
		if (strcmp(k->name, "unix socket"))
			all_flags(k->name, k->fd);
	wrong_arguments(kinds[0].fd);
	must(stat(in_work("file"), &s), "stat");
	printf("the file has %lld bytes\n", (long long)s.st_size);
	return 0;
}
