/* open_by_handle_at: with the capability that it needs, or the error that comes without. */
#include "open_sync.h"
#include <sched.h>

struct handle { /* struct file_handle with room for any handle */
	unsigned bytes;
	int type;
	unsigned char data[128];
};

static const int flags_of[] = {
	O_RDONLY, O_RDWR, O_RDWR | O_SYNC, O_WRONLY | O_DSYNC, O_WRONLY | O_APPEND | O_SYNC,
	O_RDONLY | O_SYNC, O_PATH | O_SYNC, O_WRONLY | O_SYNC | O_CLOEXEC,
};

/* While somebody makes a file with the same inode number the kernel says ENOMEM (iget_locked). */
static int open_stale(int at, struct file_handle *h)
{
	int fd = -1;

	for (int i = 0; i < 10000 && fd < 0; i++) {
		fd = open_by_handle_at(at, h, O_RDWR | O_SYNC);
		if (fd < 0 && errno != ENOMEM)
			break;
		sched_yield();
	}
	return fd;
}

int main(int count, char **arguments)
{
	struct handle handle = { .bytes = sizeof handle.data };
	struct handle short_handle = { .bytes = 3, .type = 1 };
	struct file_handle *h = (void *)&handle;
	int mount, at;

	begin(count, arguments);
	prepare_openings();
	at = must(open(work, O_RDONLY | O_DIRECTORY), "work");
	must(name_to_handle_at(at, "file", h, &mount, 0), "name_to_handle_at");
	for (unsigned i = 0; i < ARRAY_LEN(flags_of); i++) {
		char name[32];

		snprintf(name, sizeof name, "flags %o", (unsigned)flags_of[i] & VISIBLE);
		use(name, CALL_FD("open_by_handle_at", name, open_by_handle_at(at, h, flags_of[i])));
	}
	CALL_FD("open_by_handle_at", "closed", open_by_handle_at(999, h, O_RDWR | O_SYNC));
	CALL_FD("open_by_handle_at", "nowhere", open_by_handle_at(at, NOWHERE, O_RDWR | O_SYNC));
	CALL_FD("open_by_handle_at", "short",
		open_by_handle_at(at, (void *)&short_handle, O_RDWR | O_SYNC));
	must(unlink(in_work("file")), "unlink");
	CALL_FD("open_by_handle_at", "stale", open_stale(at, h));
	return 0;
}
