/* sync_file_range: every kind of descriptor, every flag, ranges that are none. */
#include "victim.h"

static void all_ranges(int fd)
{
	static const struct { const char *name; int64_t at, n; } range[] = {
		{ "0, 0", 0, 0 },
		{ "0, 4096", 0, 4096 },
		{ "1, 1", 1, 1 },
		{ "beyond the end", 1 << 30, 4096 },
		{ "beyond 4 GiB", 1ll << 40, 1ll << 34 },
		{ "-1, 1", -1, 1 },
		{ "0, -1", 0, -1 },
		{ "1, INT64_MAX", 1, INT64_MAX },
		{ "INT64_MAX, 0", INT64_MAX, 0 },
		{ "INT64_MIN, 1", INT64_MIN, 1 },
	};

	for (unsigned i = 0; i < ARRAY_LEN(range); i++) {
		char argument[64];

		snprintf(argument, sizeof argument, "file, %s, 2", range[i].name);
		CALL("sync_file_range", argument, sync_file_range(fd, range[i].at, range[i].n, 2));
		snprintf(argument, sizeof argument, "file, %s, 8", range[i].name);
		CALL("sync_file_range", argument, sync_file_range(fd, range[i].at, range[i].n, 8));
	}
}

int main(int count, char **arguments)
{
	begin(count, arguments);
	open_kinds();
	EACH_KIND(k) {
		CALL("sync_file_range", k->name, sync_file_range(k->fd, 0, 4096, 7));
		CALL("sync_file_range, bad flags", k->name, sync_file_range(k->fd, 0, 4096, 64));
		CALL("sync_file_range, bad offset", k->name, sync_file_range(k->fd, -1, 4096, 7));
	}
	for (unsigned flags = 0; flags < 10; flags++) {
		char argument[32];

		snprintf(argument, sizeof argument, "file, flags %u", flags);
		CALL("sync_file_range", argument, sync_file_range(kinds[0].fd, 0, 4096, flags));
	}
	CALL("sync_file_range", "file, flags -1", sync_file_range(kinds[0].fd, 0, 4096, -1u));
	all_ranges(kinds[0].fd);
	return 0;
}
