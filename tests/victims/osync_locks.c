/* Locks, leases and watches on a file are what they were after it is opened with O_SYNC. */
#include "descriptor.h"

/* What another process sees of our record lock. */
static void show_lock(const char *when)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	pid_t child = must(fork(), "fork");

	if (child == 0) {
		int fd = must(open(in_work("file"), O_RDWR), "file");

		must(fcntl(fd, F_GETLK, &lock), "F_GETLK");
		printf("%s: the file is %s\n", when, lock.l_type == F_UNLCK ? "free" : "locked");
		exit(0);
	}
	waitpid(child, NULL, 0);
}

static unsigned events_of(int watch)
{
	char events[4096];
	unsigned n = 0;
	ssize_t got, at = 0;

	while ((got = read(watch, events, sizeof events)) > 0)
		for (at = 0; at < got; n++)
			at += (ssize_t)(sizeof(struct inotify_event) +
					((struct inotify_event *)(void *)(events + at))->len);
	return n;
}

static void locks(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = make_file("file", O_RDWR), other;

	CALL("F_SETLK", "file", fcntl(fd, F_SETLK, &lock));
	show_lock("locked");
	other = CALL_FD("open", "O_SYNC", open(in_work("file"), O_RDWR | O_SYNC));
	show_lock("after an open with O_SYNC");
	CALL("write", "O_SYNC", write(other, "w", 1));
	show_lock("after a write");
	close(other);
	show_lock("after its close, which lets go of the lock");
	close(fd);
}

static void watches(void)
{
	int watch = must(inotify_init1(IN_NONBLOCK), "inotify"), fd;

	must(inotify_add_watch(watch, in_work("file"), IN_OPEN | IN_CLOSE | IN_MODIFY), "watch");
	fd = CALL_FD("open", "watched, O_SYNC", open(in_work("file"), O_RDWR | O_SYNC));
	printf("events of an open: %u\n", events_of(watch));
	CALL("write", "watched", write(fd, "w", 1));
	printf("events of a write: %u\n", events_of(watch));
	close(fd);
	printf("events of a close: %u\n", events_of(watch));
	close(watch);
}

static void leases(void)
{
	int fd = make_file("leased", O_WRONLY | O_SYNC);

	CALL("F_SETLEASE", "only writer, F_WRLCK", fcntl(fd, F_SETLEASE, F_WRLCK));
	CALL("F_GETLEASE", "", fcntl(fd, F_GETLEASE));
	CALL("F_SETLEASE", "F_UNLCK", fcntl(fd, F_SETLEASE, F_UNLCK));
	CALL("write", "after the lease", write(fd, "w", 1));
	close(fd);
}

int main(int count, char **arguments)
{
	begin(count, arguments);
	locks();
	watches();
	leases();
	return 0;
}
