/* Maildir deliveries from a seed: `deliver SEED DELIVERIES PROCESSES LOG DISK...`.
 *
 * Each process chooses for each message a disk, a user, a size and a kind of sync; writes it to
 * `tmp`, syncs it, renames it to `new` and syncs that folder; every few messages it appends to an
 * index of the user and syncs that too. All choices are independent of each other. Each sync goes
 * to LOG as a line (time, nanoseconds, process, kind, bytes, path), unless LOG is `-`.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define USERS 6
#define SIZE_MAX_LOG2 16

static uint64_t state;
static int log_fd = -1;
static char bytes[1 << SIZE_MAX_LOG2];

/* Splitmix64. */
static uint64_t below(uint64_t n)
{
	uint64_t z = state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return (z ^ z >> 31) % n;
}

static void must(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "deliver: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static long long now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void sync_and_log(int fd, int data_only, size_t size, const char *path)
{
	long long time = now(CLOCK_REALTIME), begin = now(CLOCK_MONOTONIC), took;
	char line[600];
	int n;

	must(!(data_only ? fdatasync(fd) : fsync(fd)), path);
	took = now(CLOCK_MONOTONIC) - begin;
	if (log_fd < 0)
		return;
	n = snprintf(line, sizeof line, "%lld %lld %d %s %zu %s\n", time, took, (int)getpid(),
		     data_only ? "fdatasync" : "fsync", size, path);
	must(write(log_fd, line, (size_t)n) == n, "log");
}

static int opened(const char *path, int flags)
{
	int fd = open(path, flags, 0600);

	must(fd >= 0, path);
	return fd;
}

static void write_and_sync(const char *path, int flags, size_t size, int data_only)
{
	int fd = opened(path, O_WRONLY | O_CREAT | flags);

	must(write(fd, bytes, size) == (ssize_t)size, path);
	sync_and_log(fd, data_only, size, path);
	close(fd);
}

static void deliver(const char *disk, int number)
{
	char user[256], from[400], to[400];
	size_t size = (size_t)1 << below(SIZE_MAX_LOG2 + 1);
	int data_only = below(3) == 0, fd;

	snprintf(user, sizeof user, "%s/user%d", disk, (int)below(USERS));
	snprintf(from, sizeof from, "%s/tmp/%d.P%d.host", user, number, (int)getpid());
	snprintf(to, sizeof to, "%s/new/%d.P%d.host", user, number, (int)getpid());
	write_and_sync(from, O_EXCL, size, data_only);
	must(!rename(from, to), to);
	snprintf(to, sizeof to, "%s/new", user);
	fd = opened(to, O_RDONLY | O_DIRECTORY);
	sync_and_log(fd, 0, 0, to);
	close(fd);
	if (below(4) == 0) {
		snprintf(to, sizeof to, "%s/index.log", user);
		write_and_sync(to, O_APPEND, 64 + below(200), below(2) == 0);
	}
}

static void make_users(const char *disk)
{
	static const char *const folders[] = { "", "/tmp", "/new" };
	char path[400];

	for (int user = 0; user < USERS; user++)
		for (int folder = 0; folder < 3; folder++) {
			snprintf(path, sizeof path, "%s/user%d%s", disk, user, folders[folder]);
			must(!mkdir(path, 0700) || errno == EEXIST, path);
		}
}

static void pause_a_little(void)
{
	struct timespec t = { 0, (long)below(2000000) };

	nanosleep(&t, NULL);
}

int main(int count, char **arguments)
{
	int deliveries, processes, disks = count - 5, status, failed = 0;

	if (disks < 1) {
		fprintf(stderr, "usage: deliver SEED DELIVERIES PROCESSES LOG DISK...\n");
		return 2;
	}
	deliveries = atoi(arguments[2]);
	processes = atoi(arguments[3]);
	if (strcmp(arguments[4], "-"))
		log_fd = opened(arguments[4], O_WRONLY | O_CREAT | O_APPEND);
	for (int disk = 0; disk < disks; disk++)
		make_users(arguments[5 + disk]);
	for (int process = 0; process < processes; process++)
		if (fork() == 0) {
			state = strtoull(arguments[1], NULL, 10) * 1000 + (uint64_t)process;
			for (int n = process; n < deliveries; n += processes) {
				deliver(arguments[5 + below((uint64_t)disks)], n);
				pause_a_little();
			}
			return 0;
		}
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}
