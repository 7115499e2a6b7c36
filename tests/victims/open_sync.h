/* The cases for every function that opens a file: which flags, which path, what is at the path. */
#ifndef OPEN_SYNC_H
#define OPEN_SYNC_H

#include "descriptor.h"

struct opening {
	const char *name;
	const char *file;
	int flags;
};

static const struct opening openings[] = {
	{ "read", "file", O_RDONLY },
	{ "write", "file", O_WRONLY },
	{ "read, O_SYNC", "file", O_RDONLY | O_SYNC },
	{ "write, O_SYNC", "file", O_WRONLY | O_SYNC },
	{ "write, O_DSYNC", "file", O_WRONLY | O_DSYNC },
	{ "both, O_SYNC", "file", O_RDWR | O_SYNC },
	{ "both, O_DSYNC", "file", O_RDWR | O_DSYNC },
	{ "O_APPEND O_SYNC", "file", O_WRONLY | O_APPEND | O_SYNC },
	{ "O_TRUNC O_SYNC", "file", O_WRONLY | O_TRUNC | O_SYNC },
	{ "O_NONBLOCK O_DSYNC", "file", O_WRONLY | O_NONBLOCK | O_DSYNC },
	{ "O_CLOEXEC O_DSYNC", "file", O_WRONLY | O_CLOEXEC | O_DSYNC },
	{ "O_NOFOLLOW O_SYNC", "file", O_WRONLY | O_NOFOLLOW | O_SYNC },
	{ "O_NOATIME O_SYNC", "file", O_RDWR | O_NOATIME | O_SYNC },
	{ "O_CREAT O_SYNC", "fresh", O_WRONLY | O_CREAT | O_SYNC },
	{ "O_CREAT O_EXCL O_SYNC", "fresh too", O_WRONLY | O_CREAT | O_EXCL | O_SYNC },
	{ "O_CREAT O_EXCL O_SYNC again", "fresh too", O_WRONLY | O_CREAT | O_EXCL | O_SYNC },
	{ "O_TMPFILE O_DSYNC", "", O_RDWR | O_TMPFILE | O_DSYNC },
	{ "through a link", "link", O_WRONLY | O_SYNC },
	{ "a link itself", "link", O_WRONLY | O_NOFOLLOW | O_SYNC },
	{ "access mode 3", "file", 3 | O_SYNC },
	{ "O_PATH O_SYNC", "file", O_PATH | O_SYNC },
	{ "missing", "missing", O_WRONLY | O_SYNC },
	{ "below a file", "file/x", O_WRONLY | O_SYNC },
	{ "directory to read", "", O_RDONLY | O_DIRECTORY | O_SYNC },
	{ "directory to write", "", O_WRONLY | O_SYNC },
	{ "file as directory", "file", O_RDONLY | O_DIRECTORY | O_SYNC },
	{ "fifo", "fifo", O_RDWR | O_SYNC },
	{ "fifo without reader", "fifo", O_WRONLY | O_NONBLOCK | O_SYNC },
};

#define EACH_OPENING(o) \
	for (const struct opening *o = openings; o < openings + ARRAY_LEN(openings); o++)

static inline void prepare_openings(void)
{
	close(make_file("file", O_RDWR));
	mkfifo(in_work("fifo"), 0600);
	symlink("file", in_work("link"));
}

static inline void forget_openings(void)
{
	unlink(in_work("fresh"));
	unlink(in_work("fresh too"));
}

/* Runs every case through OPEN, an expression that uses `path`, `name` (below the work directory,
 * open as `at`) and `flags`. */
#define OPEN_EVERYTHING(function, at, OPEN)                              \
	do {                                                             \
		EACH_OPENING(o_) {                                       \
			const char *path = in_work(o_->file);            \
			const char *name = *o_->file ? o_->file : ".";   \
			int flags = o_->flags;                           \
			(void)path, (void)name, (void)(at);              \
			use(o_->name, CALL_FD(function, o_->name, OPEN)); \
		}                                                        \
		forget_openings();                                       \
	} while (0)

#endif
