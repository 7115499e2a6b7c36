/* A FUSE file system with one file, `disk`, whose fsync (a block device's flush) takes its time.
 *
 * From the environment: BACKING the file behind it; SLOW_MS what each flush takes; BAD_MS a further
 * delay, with probability BAD_P; RW_BAD=1 puts that delay on reads and writes as well; SEED chooses
 * the sequence of bad ones. Flushes wait for each other, as those of a disk with one head do.
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int backing, rw_bad;
static double slow_ms, bad_ms, bad_probability;
static unsigned seed = 1;
/* While there is a file of this name flushes take no time. */
static char quick[PATH_MAX + 8];
/* While there is a file of this name writes fail that hold a sector which begins like it: of data,
 * say, and not of the file system's own. */
static char bad[PATH_MAX + 8];
/* While there is a file of this name flushes fail. */
static char refuses[PATH_MAX + 16];
/* Where there is a file of this name one flush fails, at its end, and takes it away. */
static char refuses_once[PATH_MAX + 16];
static pthread_mutex_t head = PTHREAD_MUTEX_INITIALIZER;

static void take_ms(double ms)
{
	struct timespec t = { (time_t)(ms / 1000), 0 };

	if (ms <= 0)
		return;
	t.tv_nsec = (long)((ms - 1000.0 * (double)t.tv_sec) * 1e6);
	nanosleep(&t, NULL);
}

static double delay_ms(void)
{
	return bad_probability > 0 && rand_r(&seed) < bad_probability * RAND_MAX ? bad_ms : 0;
}

static int get_attributes(const char *path, struct stat *s, struct fuse_file_info *file)
{
	(void)file;
	memset(s, 0, sizeof *s);
	if (!strcmp(path, "/")) {
		s->st_mode = S_IFDIR | 0755;
		s->st_nlink = 2;
		return 0;
	}
	if (strcmp(path, "/disk"))
		return -ENOENT;
	if (fstat(backing, s))
		return -errno;
	s->st_mode = S_IFREG | 0600;
	return 0;
}

static int list(const char *path, void *buffer, fuse_fill_dir_t fill, off_t at,
		struct fuse_file_info *file, enum fuse_readdir_flags flags)
{
	(void)path, (void)at, (void)file, (void)flags;
	fill(buffer, "disk", NULL, 0, 0);
	return 0;
}

static int open_disk(const char *path, struct fuse_file_info *file)
{
	(void)path, (void)file;
	return 0;
}

static int read_disk(const char *path, char *bytes, size_t n, off_t at, struct fuse_file_info *file)
{
	ssize_t r;

	(void)path, (void)file;
	if (rw_bad)
		take_ms(delay_ms());
	r = pread(backing, bytes, n, at);
	return r < 0 ? -errno : (int)r;
}

static int is_bad(const char *bytes, size_t n)
{
	char lost[8];
	size_t at;
	int fd = open(bad, O_RDONLY), yes = 0;

	if (fd < 0)
		return 0;
	if (read(fd, lost, sizeof lost) == sizeof lost)
		for (at = 0; at + sizeof lost <= n; at += 512)
			yes |= !memcmp(bytes + at, lost, sizeof lost);
	close(fd);
	return yes;
}

static int write_disk(const char *path, const char *bytes, size_t n, off_t at,
		      struct fuse_file_info *file)
{
	ssize_t r;

	(void)path, (void)file;
	if (rw_bad)
		take_ms(delay_ms());
	if (is_bad(bytes, n))
		return -EIO;
	r = pwrite(backing, bytes, n, at);
	return r < 0 ? -errno : (int)r;
}

static int flush_disk(const char *path, int data_only, struct fuse_file_info *file)
{
	(void)path, (void)data_only, (void)file;
	if (!access(refuses, F_OK))
		return -EIO;
	if (access(quick, F_OK)) {
		pthread_mutex_lock(&head);
		take_ms(slow_ms + delay_ms());
		pthread_mutex_unlock(&head);
	}
	return unlink(refuses_once) ? 0 : -EIO;
}

static int allocate(const char *path, int mode, off_t at, off_t n, struct fuse_file_info *file)
{
	(void)path, (void)file;
	return fallocate(backing, mode, at, n) ? -errno : 0;
}

static const struct fuse_operations operations = {
	.getattr = get_attributes,
	.readdir = list,
	.open = open_disk,
	.read = read_disk,
	.write = write_disk,
	.fsync = flush_disk,
	.fallocate = allocate,
};

static double number(const char *name, double otherwise)
{
	const char *value = getenv(name);

	return value ? atof(value) : otherwise;
}

int main(int count, char **arguments)
{
	const char *path = getenv("BACKING");

	backing = path ? open(path, O_RDWR) : -1;
	if (backing < 0) {
		perror("BACKING");
		return 1;
	}
	/* Behind fuse_main the working directory is another one. */
	if (!realpath(path, quick)) {
		perror(path);
		return 1;
	}
	memcpy(bad, quick, sizeof bad);
	memcpy(refuses, quick, sizeof refuses);
	memcpy(refuses_once, quick, sizeof refuses_once);
	strncat(quick, ".quick", sizeof(quick) - strlen(quick) - 1);
	strncat(bad, ".bad", sizeof(bad) - strlen(bad) - 1);
	strncat(refuses, ".refuses", sizeof(refuses) - strlen(refuses) - 1);
	strncat(refuses_once, ".once", sizeof(refuses_once) - strlen(refuses_once) - 1);
	slow_ms = number("SLOW_MS", 0);
	bad_ms = number("BAD_MS", 0);
	bad_probability = number("BAD_P", 0);
	rw_bad = number("RW_BAD", 0) != 0;
	seed = (unsigned)number("SEED", 1);
	return fuse_main(count, arguments, &operations, NULL);
}
