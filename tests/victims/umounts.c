/* A file system that is mounted, written to, synced and unmounted again and again. The directory is
 * where it is mounted; how often is behind that. What is printed is how often that found it in use
 * when nothing here used it any more, and so had to be tried again.
 */
#include "victim.h"

#include <mntent.h>
#include <sys/mount.h>

static const char *device_of(const char *directory)
{
	FILE *mounts = setmntent("/proc/self/mounts", "r");
	const char *device = "";
	struct mntent *m;

	while (mounts && (m = getmntent(mounts)))
		if (!strcmp(m->mnt_dir, directory))
			device = strdup(m->mnt_fsname);
	if (mounts)
		endmntent(mounts);
	return device;
}

int main(int count, char **arguments)
{
	int fd, held, rounds, in_use = 0;
	const char *device;

	begin(count, arguments);
	device = device_of(work);
	/* A loop device stays as long as somebody has it open. */
	held = must(open(device, O_RDONLY), device);
	for (rounds = atoi(arguments[2]); rounds > 0; rounds--) {
		fd = make_file("file", O_RDWR);
		must((int)write(fd, "bytes", 5), "write");
		must(fsync(fd), "fsync");
		/* Each of these makes whoever watches look at what is mounted. */
		if (umount(work) == 0 || umount2(work, 0) == 0 || umount(in_work("file")) == 0)
			die("it was unmounted while a file was open");
		must(fsync(fd), "fsync");
		close(fd);
		while (umount2(work, 0) != 0) {
			if (errno != EBUSY)
				die("umount");
			in_use++;
			usleep(1000);
		}
		must(mount(device, work, "ext4", 0, NULL), "mount");
	}
	close(held);
	printf("%d\n", in_use);
	return 0;
}
