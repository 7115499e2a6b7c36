/* Every call that writes, on O_SYNC and O_DSYNC descriptors and on plain ones. */
#include "descriptor.h"

#include <sys/sendfile.h>

static char bytes[64] = "sixty-three bytes of text and a NUL that nobody ever reads";
static volatile int too_many = 1025;
static struct iovec three[] = { { bytes, 7 }, { bytes, 0 }, { bytes, 11 } };

static void plain(const char *name, int fd)
{
	CALL("write 23", name, write(fd, bytes, 23));
	CALL("write 0", name, write(fd, bytes, 0));
	CALL("write nowhere", name, write(fd, NOWHERE, 23));
	CALL("write NULL", name, write(fd, NULL, 23));
	CALL("write too much", name, write(fd, NOWHERE, SIZE_MAX));
	CALL("pwrite", name, pwrite(fd, bytes, 23, 4096));
	CALL("pwrite -1", name, pwrite(fd, bytes, 23, -1));
	CALL("pwrite nowhere", name, pwrite(fd, NOWHERE, 23, 0));
#ifdef __GLIBC__
	CALL("pwrite64", name, pwrite64(fd, bytes, 23, 1ll << 33));
	CALL("pwrite64 -1", name, pwrite64(fd, bytes, 23, INT64_MIN));
#endif
}

static void vectors(const char *name, int fd)
{
	CALL("writev", name, writev(fd, three, 3));
	CALL("writev 0", name, writev(fd, three, 0));
	CALL("writev -1", name, writev(fd, three, -1));
	CALL("writev 1025", name, writev(fd, three, too_many));
	CALL("writev nowhere", name, writev(fd, NOWHERE, 3));
	CALL("pwritev", name, pwritev(fd, three, 3, 512));
	CALL("pwritev -1", name, pwritev(fd, three, 3, -1));
	CALL("pwritev -2", name, pwritev(fd, three, 3, -2));
#ifdef __GLIBC__
	CALL("pwritev64", name, pwritev64(fd, three, 3, 1ll << 33));
	CALL("pwritev64 -1", name, pwritev64(fd, three, 3, -1));
#endif
}

static void transfers(const char *name, int fd, int source)
{
	off_t from = 3;
	int pair[2];

	must(pipe(pair), "pipe");
	lseek(source, 0, SEEK_SET);
	CALL("sendfile", name, sendfile(fd, source, NULL, 29));
	CALL("sendfile at", name, sendfile(fd, source, &from, 29));
	printf("  read up to %ld\n", (long)from);
	CALL("sendfile from closed", name, sendfile(fd, 999, NULL, 29));
#ifdef __GLIBC__
	off64_t in = 5, out = 8192;

	CALL("sendfile64 at", name, sendfile64(fd, source, &in, 29));
	CALL("copy_file_range", name, copy_file_range(source, &in, fd, &out, 29, 0));
	printf("  from %lld to %lld\n", (long long)in, (long long)out);
	CALL("copy_file_range, bad flags", name, copy_file_range(source, &in, fd, &out, 29, 1));
#endif
	must((int)write(pair[1], bytes, 31), "pipe");
	CALL("splice", name, splice(pair[0], NULL, fd, NULL, 31, SPLICE_F_NONBLOCK));
	CALL("splice, nothing there", name, splice(pair[0], NULL, fd, NULL, 31, SPLICE_F_NONBLOCK));
	close(pair[0]), close(pair[1]);
}

/* stdio on a descriptor: the libc writes inside. */
static void stream(const char *name, int fd)
{
	FILE *f = fdopen(dup(fd), "w");

	if (!f) {
		printf("no stream: %s\n", name);
		return;
	}
	CALL("fprintf", name, fprintf(f, "%s", bytes));
	CALL("fflush", name, fflush(f));
	CALL("fsync(fileno)", name, fsync(fileno(f)));
	CALL("fclose", name, fclose(f));
	CALL("dprintf", name, dprintf(fd, "%s", bytes));
}

/* What the file holds in the end, in one number. */
static void show_sum(int fd)
{
	unsigned char block[4096];
	uint32_t sum = 2166136261u;
	off_t size = lseek(fd, 0, SEEK_END);
	ssize_t n;

	lseek(fd, 0, SEEK_SET);
	while (size < 1 << 20 && (n = read(fd, block, sizeof block)) > 0)
		for (ssize_t i = 0; i < n; i++)
			sum = (sum ^ block[i]) * 16777619u;
	printf("%lld bytes, sum %08x\n", (long long)size, (unsigned)sum);
}

static void all(const char *name, int flags)
{
	int source = make_file("source", O_RDWR), fd = make_file("file", flags), reading;

	must((int)pwrite(source, bytes, sizeof bytes, 0), "source");
	printf("-- %s\n", name);
	plain(name, fd);
	vectors(name, fd);
	transfers(name, fd, source);
	stream(name, fd);
	reading = must(open(in_work("file"), O_RDONLY), "file");
	show_sum(reading);
	close(reading), close(fd), close(source);
	unlink(in_work("file"));
}

int main(int count, char **arguments)
{
	begin(count, arguments);
	all("plain", O_RDWR);
	all("O_SYNC", O_RDWR | O_SYNC);
	all("O_DSYNC", O_RDWR | O_DSYNC);
	all("O_WRONLY O_SYNC", O_WRONLY | O_SYNC);
	all("O_APPEND O_DSYNC", O_RDWR | O_APPEND | O_DSYNC);
	all("O_RDONLY O_SYNC", O_RDONLY | O_SYNC);
	open_kinds();
	EACH_KIND(k)
		if (strcmp(k->name, "pipe to write") && strcmp(k->name, "unix socket"))
			CALL("write", k->name, write(k->fd, bytes, 23));
	return 0;
}
