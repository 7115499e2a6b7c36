/* A FUSE file system over a folder: each open, create, read, write, rename and close takes its
 * time, everything else none.
 *
 *   BACKING=FOLDER SLOW_MS=N slowfiles MOUNT
 *
 * Reads and writes go past the page cache, so that each one is asked for here.
 */
#define FUSE_USE_VERSION 31
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int backing;
static long slow_ms;

static void take_time(void)
{
	const struct timespec t = { slow_ms / 1000, slow_ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/* The path in the backing folder. */
static const char *below(const char *path) { return path[1] ? path + 1 : "."; }

static int get_attributes(const char *path, struct stat *s, struct fuse_file_info *file)
{
	(void)file;
	return fstatat(backing, below(path), s, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
}

static int open_file(const char *path, struct fuse_file_info *file)
{
	int fd;

	take_time();
	fd = openat(backing, below(path), file->flags & ~O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	file->fh = (uint64_t)fd;
	file->direct_io = 1;
	return 0;
}

static int create_file(const char *path, mode_t mode, struct fuse_file_info *file)
{
	int fd;

	take_time();
	fd = openat(backing, below(path), file->flags | O_CREAT, mode);
	if (fd < 0)
		return -errno;
	file->fh = (uint64_t)fd;
	file->direct_io = 1;
	return 0;
}

static int read_file(const char *path, char *bytes, size_t n, off_t at, struct fuse_file_info *file)
{
	ssize_t r;

	(void)path;
	take_time();
	r = pread((int)file->fh, bytes, n, at);
	return r < 0 ? -errno : (int)r;
}

static int write_file(const char *path, const char *bytes, size_t n, off_t at,
		      struct fuse_file_info *file)
{
	ssize_t r;

	(void)path;
	take_time();
	r = pwrite((int)file->fh, bytes, n, at);
	return r < 0 ? -errno : (int)r;
}

static int rename_file(const char *from, const char *to, unsigned flags)
{
	take_time();
	return renameat2(backing, below(from), backing, below(to), flags) ? -errno : 0;
}

/* Each close of a descriptor. */
static int flush_file(const char *path, struct fuse_file_info *file)
{
	(void)path, (void)file;
	take_time();
	return 0;
}

static int release_file(const char *path, struct fuse_file_info *file)
{
	(void)path;
	return close((int)file->fh) ? -errno : 0;
}

static const struct fuse_operations operations = {
	.getattr = get_attributes,
	.open = open_file,
	.create = create_file,
	.read = read_file,
	.write = write_file,
	.rename = rename_file,
	.flush = flush_file,
	.release = release_file,
};

int main(int count, char **arguments)
{
	const char *folder = getenv("BACKING"), *ms = getenv("SLOW_MS");

	backing = folder ? open(folder, O_RDONLY | O_DIRECTORY) : -1;
	if (backing < 0 || !ms) {
		perror("BACKING, SLOW_MS");
		return 1;
	}
	slow_ms = atol(ms);
	return fuse_main(count, arguments, &operations, NULL);
}
