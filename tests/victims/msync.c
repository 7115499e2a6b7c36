/* msync: every combination of flags on every kind of range. */
#include "victim.h"

#define PAGES 8

static size_t page;

static char *map(int prot, int flags, int fd)
{
	char *p = mmap(NULL, PAGES * page, prot, flags, fd, 0);

	if (p == MAP_FAILED)
		die("mmap");
	return p;
}

static void all_flags(const char *range, void *from, size_t length)
{
	static const struct { const char *name; int flags; } how[] = {
		{ "MS_SYNC", MS_SYNC },
		{ "MS_ASYNC", MS_ASYNC },
		{ "0", 0 },
		{ "MS_SYNC|MS_INVALIDATE", MS_SYNC | MS_INVALIDATE },
		{ "MS_SYNC|MS_ASYNC", MS_SYNC | MS_ASYNC },
		{ "MS_SYNC|8", MS_SYNC | 8 },
		{ "-1", -1 },
	};

	for (unsigned i = 0; i < ARRAY_LEN(how); i++) {
		char argument[128];

		snprintf(argument, sizeof argument, "%s, %s", range, how[i].name);
		CALL("msync", argument, msync(from, length, how[i].flags));
	}
}

/* A file whose name is longer than most. */
static char *map_long_name(void)
{
	char name[3 * 201 + 8] = "";
	char *end = name;
	int fd;

	for (int k = 0; k < 3; k++) {
		memset(end, 'n', 200);
		end += 200;
		*end = 0;
		must(mkdir(in_work(name), 0700), "mkdir");
		*end++ = '/';
	}
	memcpy(end, "file", 5);
	fd = make_file(name, O_RDWR);
	must(ftruncate(fd, (off_t)(PAGES * page)), "ftruncate");
	return map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
}

int main(int count, char **arguments)
{
	char *shared, *private, *memory, *reading, *holed, *locked;
	int fd, other;

	begin(count, arguments);
	page = (size_t)sysconf(_SC_PAGESIZE);
	fd = make_file("file", O_RDWR);
	other = make_file("other", O_RDWR);
	must(ftruncate(fd, (off_t)(PAGES * page)), "ftruncate");
	must(ftruncate(other, (off_t)(PAGES * page)), "ftruncate");
	shared = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
	private = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
	reading = map(PROT_READ, MAP_SHARED, other);
	memory = map(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
	holed = map(PROT_READ | PROT_WRITE, MAP_SHARED, other);
	locked = map(PROT_READ | PROT_WRITE, MAP_SHARED, other);
	memset(shared, 'v', PAGES * page);
	holed[0] = 'v';
	must(munmap(holed + 3 * page, page), "munmap");
	must(mlock(locked, page), "mlock");

	all_flags("shared file", shared, PAGES * page);
	all_flags("private file", private, PAGES * page);
	all_flags("read-only map", reading, PAGES * page);
	all_flags("anonymous memory", memory, PAGES * page);
	all_flags("range with a hole", holed, PAGES * page);
	all_flags("range that ends in a hole", holed + 2 * page, 2 * page);
	all_flags("locked page", locked, page);
	all_flags("long name", map_long_name(), PAGES * page);
	all_flags("unmapped", holed + 3 * page, page);
	all_flags("unaligned", shared + 1, page);
	all_flags("length 0", shared, 0);
	all_flags("length 1", shared, 1);
	all_flags("length SIZE_MAX", shared, SIZE_MAX);
	all_flags("length wraps", shared, SIZE_MAX - page);
	all_flags("address 0", NULL, page);
	all_flags("kernel's address", NOWHERE, page);
	return 0;
}
