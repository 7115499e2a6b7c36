/* faults: a thread writes from a page that is not there (userfaultfd(2)). Says "ready"; brings the
 * page once it has read a line, says "brought", and ends at the end of its input.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LEN = 4096 };

static unsigned char *page;

static void must(int is_done, const char *what)
{
	if (!is_done) {
		perror(what);
		exit(1);
	}
}

/* A descriptor that tells of faults at `page`. */
static int serve(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	must(fd >= 0 && !ioctl(fd, UFFDIO_API, &api), "userfaultfd");
	page = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(page != MAP_FAILED, "a page");
	range.range.start = (unsigned long)page;
	range.range.len = LEN;
	must(!ioctl(fd, UFFDIO_REGISTER, &range), "UFFDIO_REGISTER");
	return fd;
}

static void *write_page(void *unused)
{
	int pair[2];

	must(!pipe(pair) && write(pair[1], page, 1) == 1, "write");
	return unused;
}

static void bring(int fd)
{
	struct uffdio_zeropage zeros = { .range.start = (unsigned long)page, .range.len = LEN };
	struct uffd_msg fault;

	must(read(fd, &fault, sizeof fault) == sizeof fault, "a fault");
	must(!ioctl(fd, UFFDIO_ZEROPAGE, &zeros), "UFFDIO_ZEROPAGE");
}

int main(void)
{
	char line[100];
	pthread_t thread;
	int fd = serve();

	setlinebuf(stdout);
	must(!pthread_create(&thread, NULL, write_page, NULL), "a thread");
	puts("ready");
	must(fgets(line, sizeof line, stdin) != NULL, "a line");
	bring(fd);
	must(!pthread_join(thread, NULL), "the thread");
	puts("brought");
	while (fgets(line, sizeof line, stdin))
		;
	return 0;
}
