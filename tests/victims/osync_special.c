/* O_SYNC on what is no file on a disk: fifos, devices, terminals. */
#include "descriptor.h"

#include <pthread.h>

static const char *const devices[] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/ptmx" };

/* Reads one byte and goes: who opens the fifo a second time finds no reader, and would wait. */
static void *read_once(void *unused)
{
	int fd = must(open(in_work("fifo"), O_RDONLY), "fifo");
	char byte;

	(void)unused;
	if (read(fd, &byte, 1) != 1)
		die("read");
	close(fd);
	return NULL;
}

static void waiting_fifo(int flag, const char *name)
{
	pthread_t reader;
	int fd;

	pthread_create(&reader, NULL, read_once, NULL);
	/* The reader opens too: which of both gets the lower number is a matter of luck. */
	CALL("open, waits for a reader", name, (fd = open(in_work("fifo"), O_WRONLY | flag)) >= 0);
	look_at(name, fd);
	CALL("write", name, write(fd, "b", 1));
	pthread_join(reader, NULL);
	CALL("write, reader gone", name, write(fd, "b", 1));
	close(fd);
}

static void open_fifo(int flag, const char *name)
{
	char bytes[8];
	int fd = CALL_FD("open fifo", name, open(in_work("fifo"), O_RDWR | flag));

	use(name, dup(fd));
	CALL("read", name, read(fd, bytes, 5));
	close(fd);
}

int main(int count, char **arguments)
{
	static const struct { const char *name; int flag; } how[] = {
		{ "O_SYNC", O_SYNC }, { "O_DSYNC", O_DSYNC },
	};

	begin(count, arguments);
	mkfifo(in_work("fifo"), 0600);
	for (unsigned i = 0; i < ARRAY_LEN(how); i++) {
		for (unsigned k = 0; k < ARRAY_LEN(devices); k++)
			use(devices[k],
			    CALL_FD("open", devices[k], open(devices[k], O_RDWR | O_NOCTTY | how[i].flag)));
		open_fifo(how[i].flag, how[i].name);
		waiting_fifo(how[i].flag, how[i].name);
	}
	return 0;
}
