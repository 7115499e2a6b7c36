/* Every covered call by its number, through syscall(), and some others that must pass unchanged. */
#include "descriptor.h"

#include <sys/sendfile.h>

#if __SIZEOF_LONG__ == 8
#define WIDE(value) (long)(value)
#else
#define WIDE(value) (long)(value), (long)((int64_t)(value) >> 32)
#endif

static char bytes[64] = "what is to be written";
static struct iovec two[] = { { bytes, 7 }, { bytes + 7, 16 } };

static void on_descriptors(void)
{
	open_kinds();
	EACH_KIND(k) {
		CALL("SYS_fsync", k->name, syscall(SYS_fsync, k->fd));
		CALL("SYS_fdatasync", k->name, syscall(SYS_fdatasync, k->fd));
		CALL("SYS_syncfs", k->name, syscall(SYS_syncfs, k->fd));
		CALL("SYS_sync_file_range", k->name,
		     syscall(SYS_sync_file_range, k->fd, WIDE(0), WIDE(4096), 7));
		CALL("SYS_sync_file_range, wide", k->name,
		     syscall(SYS_sync_file_range, k->fd, WIDE(1ll << 33), WIDE(-1), 2));
	}
}

static void on_memory(int fd)
{
	char *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		die("mmap");
	p[0] = 'v';
	CALL("SYS_msync", "MS_SYNC", syscall(SYS_msync, p, 8192, MS_SYNC));
	CALL("SYS_msync", "MS_ASYNC", syscall(SYS_msync, p, 8192, MS_ASYNC));
	CALL("SYS_msync", "both", syscall(SYS_msync, p, 8192, MS_SYNC | MS_ASYNC));
	CALL("SYS_msync", "unaligned", syscall(SYS_msync, p + 1, 8192, MS_SYNC));
	CALL("SYS_msync", "unmapped", syscall(SYS_msync, NOWHERE, 4096, MS_SYNC));
	munmap(p, 8192);
}

static void transfers(int fd)
{
	int pair[2], source = make_file("source", O_RDWR);
	long from = 3;

	must((int)pwrite(source, bytes, sizeof bytes, 0), "source");
	must(pipe(pair), "pipe");
	must((int)write(pair[1], bytes, 31), "pipe");
	CALL("SYS_sendfile", "O_SYNC", syscall(SYS_sendfile, fd, source, &from, 29));
	CALL("SYS_copy_file_range", "O_SYNC",
	     syscall(SYS_copy_file_range, source, NULL, fd, NULL, 29, 0));
	CALL("SYS_splice", "O_SYNC", syscall(SYS_splice, pair[0], NULL, fd, NULL, 31, 0));
	CALL("SYS_splice", "not that way", syscall(SYS_splice, fd, NULL, pair[0], NULL, 31, 0));
	close(pair[0]), close(pair[1]), close(source);
}

static void on_paths(void)
{
	struct { uint64_t flags, mode, resolve; } how = { O_WRONLY | O_SYNC, 0, 0 };
	const char *path = in_work("file");
	int fd;

#ifdef SYS_open
	use("SYS_open", CALL_FD("SYS_open", "O_SYNC", syscall(SYS_open, path, O_WRONLY | O_SYNC, 0)));
	CALL_FD("SYS_open", "nowhere", syscall(SYS_open, NOWHERE, O_WRONLY | O_SYNC, 0));
#endif
	use("SYS_openat",
	    CALL_FD("SYS_openat", "O_DSYNC", syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_DSYNC, 0)));
	use("SYS_openat2",
	    CALL_FD("SYS_openat2", "O_SYNC", syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how)));
	fd = CALL_FD("SYS_openat", "O_SYNC", syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_SYNC, 0));
	CALL("SYS_write", "O_SYNC", syscall(SYS_write, fd, bytes, 23));
	CALL("SYS_writev", "O_SYNC", syscall(SYS_writev, fd, two, 2));
	CALL("SYS_pwrite64", "O_SYNC", syscall(SYS_pwrite64, fd, bytes, 23, WIDE(1ll << 33)));
	CALL("SYS_pwrite64", "bad offset", syscall(SYS_pwrite64, fd, bytes, 23, WIDE(-1)));
	CALL("SYS_pwritev", "O_SYNC", syscall(SYS_pwritev, fd, two, 2, 512, 0));
	CALL("SYS_write", "nowhere", syscall(SYS_write, fd, NOWHERE, 23));
	transfers(fd);
	CALL("SYS_pwritev2", "RWF_SYNC", syscall(SYS_pwritev2, fd, two, 2, 0, 0, RWF_SYNC_));
	CALL("SYS_pwritev2", "RWF_DSYNC", syscall(SYS_pwritev2, fd, two, 2, -1, -1, RWF_DSYNC_));
	CALL("SYS_fcntl F_GETFL", "O_SYNC", syscall(SYS_fcntl, fd, F_GETFL) & SYNCS);
	close(fd);
}

/* Six arguments, a pointer as result, a number that is none. */
static void passed_on(void)
{
	struct timespec moment = { 0, 1 };
	long page = sysconf(_SC_PAGESIZE);
	uint32_t word = 0;
#ifdef SYS_mmap2
	long p = syscall(SYS_mmap2, 0, page, 3, 0x22, -1, 0);
#else
	long p = syscall(SYS_mmap, 0, page, 3, 0x22, -1, 0);
#endif

	printf("a mapping can be written: %d\n", (*(volatile char *)p = 1));
	CALL("SYS_munmap", "", syscall(SYS_munmap, p, page));
	CALL("SYS_getpid", "", syscall(SYS_getpid) == getpid());
	CALL("SYS_futex", "wait, other value", syscall(SYS_futex, &word, 0, 1, &moment, NULL, 0));
	CALL("SYS_futex", "wait, a moment", syscall(SYS_futex, &word, 0, 0, &moment, NULL, 0));
	CALL("9999", "", syscall(9999, 1, 2, 3, 4, 5, 6));
	CALL("-1", "", syscall(-1));
}

int main(int count, char **arguments)
{
	begin(count, arguments);
	on_descriptors();
	CALL("SYS_sync", "", syscall(SYS_sync));
	on_memory(kinds[0].fd);
	on_paths();
	passed_on();
	for (int i = 0; i < 23; i++)
		CALL("SYS_fsync", "again", syscall(SYS_fsync, kinds[0].fd));
	return 0;
}
