/* Threads that write and sync without a pause: hammer DIRECTORY [THREADS [REQUESTS]].
 *
 * DIRECTORY/progress holds two numbers of 64 bits: how many requests have been answered, and this
 * process's id. Without REQUESTS, or with 0, it goes on for ever. It ends with status 1 when a
 * request fails.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t *progress;
static long limit;

static void *hammer(void *argument)
{
	char name[32];
	int fd;

	snprintf(name, sizeof name, "hammered-%d-%ld", (int)getpid(), (long)argument);
	fd = open(name, O_CREAT | O_RDWR, 0600);
	for (long i = 0; !limit || i < limit; i++) {
		if (fd < 0 || pwrite(fd, "a", 1, i % 4096) != 1 || fsync(fd))
			_exit(1);
		__atomic_fetch_add(progress, 1, __ATOMIC_SEQ_CST);
	}
	close(fd);
	return NULL;
}

int main(int count, char **arguments)
{
	long threads = count > 2 ? atol(arguments[2]) : 1;
	pthread_t thread[64];
	int fd;

	limit = count > 3 ? atol(arguments[3]) : 0;
	if (count < 2 || threads > 64 || chdir(arguments[1]))
		return 2;
	fd = open("progress", O_CREAT | O_RDWR | O_TRUNC, 0600);
	if (fd < 0 || ftruncate(fd, 16))
		return 2;
	progress = mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (progress == MAP_FAILED)
		return 2;
	progress[1] = (uint64_t)getpid();
	for (long i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, hammer, (void *)i))
			return 2;
	for (long i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	return 0;
}
