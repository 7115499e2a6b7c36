/* openat2, which the libcs leave to syscall(): the flags stand behind a pointer. */
#include "open_sync.h"

struct how { /* struct open_how of linux/openat2.h */
	uint64_t flags, mode, resolve;
};

static long openat2_(int at, const char *path, const struct how *how, size_t size)
{
	return syscall(SYS_openat2, at, path, how, size);
}

static long with_flags(int at, const char *path, uint64_t flags)
{
	struct how how = { flags, flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? 0600 : 0, 0 };

	return openat2_(at, path, &how, sizeof how);
}

static void wrong(int at)
{
	struct how how = { O_WRONLY | O_SYNC, 0, 0 };
	struct { struct how how; uint64_t more; } longer = { how, 0 };

	CALL_FD("openat2", "pointer to nowhere", openat2_(at, "file", NOWHERE, sizeof how));
	CALL_FD("openat2", "NULL", openat2_(at, "file", NULL, sizeof how));
	CALL_FD("openat2", "size 0", openat2_(at, "file", &how, 0));
	CALL_FD("openat2", "size 8", openat2_(at, "file", &how, 8));
	CALL_FD("openat2", "size 1 MiB", openat2_(at, "file", &how, 1 << 20));
	use("longer, zeroes",
	    CALL_FD("openat2", "longer", openat2_(at, "file", &longer.how, sizeof longer)));
	longer.more = 1;
	CALL_FD("openat2", "longer, not zero", openat2_(at, "file", &longer.how, sizeof longer));
	how.mode = 0600;
	CALL_FD("openat2", "mode without O_CREAT", openat2_(at, "file", &how, sizeof how));
	how.mode = 0, how.flags = 1ull << 40 | O_SYNC;
	CALL_FD("openat2", "unknown flag", openat2_(at, "file", &how, sizeof how));
	how.flags = O_WRONLY | O_SYNC, how.resolve = 8 /* RESOLVE_BENEATH */;
	use("beneath", CALL_FD("openat2", "beneath", openat2_(at, "file", &how, sizeof how)));
	CALL_FD("openat2", "not beneath", openat2_(at, "/dev/null", &how, sizeof how));
	how.resolve = 1 << 20;
	CALL_FD("openat2", "unknown resolve", openat2_(at, "file", &how, sizeof how));
	how.resolve = 0;
	CALL_FD("openat2", "path nowhere", openat2_(at, NOWHERE, &how, sizeof how));
	CALL_FD("openat2", "closed directory", openat2_(999, "file", &how, sizeof how));
}

int main(int count, char **arguments)
{
	int at;

	begin(count, arguments);
	prepare_openings();
	at = must(open(work, O_RDONLY | O_DIRECTORY), "work");
	OPEN_EVERYTHING("openat2", at, with_flags(at, name, (unsigned)flags));
	wrong(at);
	return 0;
}
