/* Writes page and slots of a session that has no supervisor: `bare_page DIR single|several`.
 *
 * Its lease never ends, its dial is anything but `now`, and the one file system that it knows (the
 * one of DIR) is in the ledger, so that every request on it is answered later. With `several` each
 * request is counted for its file system too. Nothing is ever settled: for tests of answers only.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "core/page.h"

static struct sl_page page;
static struct sl_slots slots;

static int put(const char *directory, const char *name, const void *bytes, size_t n)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", directory, name);
	f = fopen(path, "w");
	return f && fwrite(bytes, n, 1, f) == 1 && fclose(f) == 0;
}

static int know_file_system(const char *directory)
{
	struct stat s;
	uint32_t at;

	if (stat(directory, &s))
		return 0;
	page.fs[0].dev = (uint64_t)major(s.st_dev) << 32 | minor(s.st_dev);
	page.fs[0].state = SL_FS_OWES;
	at = (uint32_t)(page.fs[0].dev * 0x9e3779b97f4a7c15ull >> 32) % SL_NAME_MAX;
	page.names[at].dev = page.fs[0].dev;
	return 1;
}

int main(int count, char **arguments)
{
	if (count != 3 || !know_file_system(arguments[1])) {
		fprintf(stderr, "usage: bare_page DIRECTORY single|several\n");
		return 2;
	}
	page.magic = SL_PAGE_MAGIC;
	page.version = SL_VERSION;
	page.size = sizeof page;
	page.lease_span = UINT64_MAX; /* any time is before the end */
	page.clock = SL_CLOCK_TSC;
	page.relax = 1;
	page.several = !strcmp(arguments[2], "several");
	page.slots_size = sizeof slots;
	page.filters = UINT32_MAX - 1;
	page.sync_ok = 1;
	slots.magic = SL_SLOTS_MAGIC;
	slots.version = SL_VERSION;
	slots.size = sizeof slots;
	return !(put(arguments[1], "page", &page, sizeof page) &&
		 put(arguments[1], "slots", &slots, sizeof slots));
}
