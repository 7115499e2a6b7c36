/* open, open64, openat, openat64 and creat, with and without O_SYNC. */
#include "open_sync.h"

static void bad_pointers(int at)
{
	const char *nowhere = NOWHERE;

	CALL_FD("open", "bad pointer", open(nowhere, O_WRONLY | O_SYNC));
	CALL_FD("openat", "bad pointer", openat(at, nowhere, O_WRONLY | O_SYNC));
	CALL_FD("open", "empty path", open("", O_WRONLY | O_SYNC));
	CALL_FD("openat", "closed directory", openat(999, "file", O_WRONLY | O_SYNC));
	CALL_FD("openat", "directory -1", openat(-1, "file", O_WRONLY | O_SYNC));
}

static void modes(void)
{
	struct stat s;

	umask(0);
	close(CALL_FD("open", "mode 640", open(in_work("m"), O_CREAT | O_WRONLY | O_SYNC, 0640)));
	must(stat(in_work("m"), &s), "stat");
	printf("mode %o size %ld\n", (unsigned)s.st_mode, (long)s.st_size);
	close(CALL_FD("open", "mode 200", open(in_work("n"), O_CREAT | O_RDWR | O_SYNC, 0200)));
	must(stat(in_work("n"), &s), "stat");
	printf("mode %o size %ld\n", (unsigned)s.st_mode, (long)s.st_size);
}

int main(int count, char **arguments)
{
	int at;

	begin(count, arguments);
	prepare_openings();
	at = must(open(work, O_RDONLY | O_DIRECTORY), "work");
	OPEN_EVERYTHING("open", at, open(path, flags, 0600));
	OPEN_EVERYTHING("openat", at, openat(at, name, flags, 0600));
	OPEN_EVERYTHING("openat, absolute", at, openat(999, path, flags, 0600));
#ifdef __GLIBC__
	OPEN_EVERYTHING("open64", at, open64(path, flags, 0600));
	OPEN_EVERYTHING("openat64", at, openat64(at, name, flags, 0600));
#endif
	use("creat", CALL_FD("creat", "fresh", creat(in_work("fresh"), 0600)));
	bad_pointers(at);
	modes();
	return 0;
}
