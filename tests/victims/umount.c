/* umount and umount2 of a file system that was written to and synced. The directory is its root.
 * With one more argument it goes by the number of its system call. */
#include "victim.h"

#include <sys/mount.h>

static long by_number(void)
{
#ifdef SYS_umount
	return syscall(SYS_umount, work);
#else
	return syscall(SYS_umount2, work, 0);
#endif
}

int main(int count, char **arguments)
{
	int fd;

	begin(count, arguments);
	fd = make_file("file", O_RDWR);
	CALL("write", "file", write(fd, "bytes", 5));
	CALL("fsync", "file", fsync(fd));
	CALL("umount", "busy", umount(work));
	CALL("umount2", "busy", umount2(work, 0));
	CALL("umount2", "bad flags", umount2(work, 1 << 20));
	CALL("umount", "missing", umount(in_work("missing")));
	CALL("umount", "file", umount(in_work("file")));
	CALL("umount", "nowhere", umount(NOWHERE));
	CALL("fsync", "after failures", fsync(fd));
	close(fd);
	if (count > 2)
		CALL("syscall", "umount", by_number());
	else
		CALL("umount2", "UMOUNT_NOFOLLOW", umount2(work, UMOUNT_NOFOLLOW));
	CALL("umount", "again", umount(work));
	return 0;
}
