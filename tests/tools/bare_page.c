/* Writes page and slots of a session that has no supervisor: `bare_page DIR single|several`.
 *
 * Its lease never ends, its dial is anything but `now`, and the one file system that it knows (the
 * one of DIR) is in the ledger, so that every request on it is answered later. With `several` each
 * request has to look where it lies. Nothing is ever settled: for tests of answers only.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "page.h"

#define MOUNT_ID 0x1000u /* STATX_MNT_ID */

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
	struct statx x;
	uint32_t at;

	if (statx(AT_FDCWD, directory, 0, MOUNT_ID, &x) || !(x.stx_mask & MOUNT_ID))
		return 0;
	at = (uint32_t)(x.stx_mnt_id * 0x9e3779b97f4a7c15ull >> 32) % SL_MOUNT_MAX;
	page.mount_mask = MOUNT_ID;
	page.mounts[at].id = x.stx_mnt_id;
	page.fs[0].dev = (uint64_t)x.stx_dev_major << 32 | x.stx_dev_minor;
	page.fs[0].state = SL_FS_OWES;
	return 1;
}

int main(int count, char **arguments)
{
	struct stat mounts;

	if (count != 3 || !know_file_system(arguments[1]) || stat("/proc/self/ns/mnt", &mounts)) {
		fprintf(stderr, "usage: bare_page DIRECTORY single|several\n");
		return 2;
	}
	page.magic = SL_PAGE_MAGIC;
	page.version = SL_VERSION;
	page.size = sizeof page;
	page.lease_span = UINT64_MAX; /* any time is before the end */
	page.clock = SL_CLOCK_TSC;
	page.relax = 1;
	page.single = !strcmp(arguments[2], "single");
	page.slots_size = sizeof slots;
	page.filters = UINT32_MAX - 1;
	page.sync_ok = 1;
	page.mount_ns = mounts.st_ino;
	slots.magic = SL_SLOTS_MAGIC;
	slots.version = SL_VERSION;
	slots.size = sizeof slots;
	return !(put(arguments[1], "page", &page, sizeof page) &&
		 put(arguments[1], "slots", &slots, sizeof slots));
}
