/* waits_later HOW: waits in a call whose limit of three seconds begins when its input has ended.
 * HOW is "splice": from an empty pipe to a full socket; "dgram": for a full buffer of its own, then
 * for a full receiver. Says "ready" before, and "took MILLISECONDS" since the end of its input
 * behind it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int pipes[2], full, first = -1;
static char bytes[4096];
static _Atomic long ended;

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A receiver with a name of its own, of no folder. */
static struct sockaddr_un name_of(int number)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };

	snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "waits-%d-%d", getpid(), number);
	return name;
}

static int receiver(int number)
{
	struct sockaddr_un name = name_of(number);
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

	if (bind(fd, (void *)&name, sizeof name))
		exit(1);
	return fd;
}

static void fill_with(int fd, size_t size, int number)
{
	struct sockaddr_un name = name_of(number);

	while (sendto(fd, bytes, size, MSG_DONTWAIT, (void *)&name, sizeof name) > 0)
		;
}

static void limit(int fd)
{
	struct timeval three = { 3, 0 };

	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &three, sizeof three);
}

static void *listen_to(void *unused)
{
	char byte;

	(void)unused;
	(void)!read(0, &byte, 1);
	ended = now();
	if (first < 0)
		(void)!write(pipes[1], "x", 1);
	while (first >= 0 && recv(first, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
		;
	return NULL;
}

int main(int count, char **words)
{
	int small = 16384, is_splice = count > 1 && !strcmp(words[1], "splice"), pair[2];
	struct sockaddr_un second;
	pthread_t thread;

	fsync(-1);
	setlinebuf(stdout);
	if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		return 1;
	full = pair[0];
	if (!is_splice) {
		full = socket(AF_UNIX, SOCK_DGRAM, 0);
		setsockopt(full, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
		first = receiver(1);
		fill_with(full, 4000, 1);
		receiver(2);
		fill_with(socket(AF_UNIX, SOCK_DGRAM, 0), 10, 2);
	} else {
		while (send(full, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
			;
	}
	limit(full);
	puts("ready");
	pthread_create(&thread, NULL, listen_to, NULL);
	second = name_of(2);
	if (is_splice)
		splice(pipes[0], NULL, full, NULL, 1, 0);
	else
		sendto(full, bytes, 4000, 0, (void *)&second, sizeof second);
	printf("took %ld\n", now() - ended);
	return 0;
}
