/* Every call that renames, and creat: names that are good, missing, wrong, or nowhere. */
#include "victim.h"

#include <ftw.h>

static const char *const names[] = { "a", "folder/c", "full", "link", "missing", "a/x", "" };

static int forget(const char *path, const struct stat *s, int type, struct FTW *at)
{
	(void)s, (void)type;
	return at->level ? remove(path) : 0;
}

static void prepare(void)
{
	static const char *const files[] = { "a", "b", "folder/c", "full/d" };
	static const mode_t modes[] = { 0600, 0700, 0640, 0604 };

	must(nftw(work, forget, 8, FTW_DEPTH | FTW_PHYS), "nftw");
	mkdir(in_work("folder"), 0700);
	mkdir(in_work("full"), 0700);
	for (unsigned k = 0; k < ARRAY_LEN(files); k++) {
		/* Told apart by their modes: to write them takes a disk's time. */
		close(must(open(in_work(files[k]), O_CREAT | O_WRONLY, modes[k]), files[k]));
	}
	symlink("a", in_work("link"));
}

/* What is where, in one line. */
static void look(void)
{
	for (unsigned k = 0; k < ARRAY_LEN(names); k++) {
		struct stat s;

		printf("%s%s", k ? " " : "  ",
		       lstat(in_work(names[k]), &s) ? "-" : S_ISDIR(s.st_mode) ? "d" :
		       S_ISLNK(s.st_mode) ? "l" : "f");
		if (*names[k] && !lstat(in_work(names[k]), &s) && S_ISREG(s.st_mode))
			printf("%o", (unsigned)s.st_mode & 0777);
	}
	printf("\n");
}

/* Each pair from a fresh start: CALL uses `from` and `to`. */
#define EACH_PAIR(call, expression)                                        \
	for (unsigned i_ = 0; i_ < ARRAY_LEN(names); i_++)                 \
		for (unsigned k_ = 0; k_ < ARRAY_LEN(names); k_++) {       \
			const char *from = names[i_], *to = names[k_];     \
			char both_[256];                                   \
			prepare();                                         \
			snprintf(both_, sizeof both_, "%s, %s", from, to); \
			CALL(call, both_, expression);                     \
			look();                                            \
		}

static void pairs(int folder)
{
	EACH_PAIR("rename", rename(in_work(from), in_work(to)));
	EACH_PAIR("renameat", renameat(folder, from, folder, to));
	EACH_PAIR("syscall renameat2", syscall(SYS_renameat2, folder, from, folder, to, 0));
#ifdef __GLIBC__
	for (unsigned flags = 0; flags < 4; flags++) {
		EACH_PAIR("renameat2", renameat2(folder, from, folder, to, flags));
		}
#endif
}

static void wrong_names(int folder)
{
	static char long_name[PATH_MAX + 2];

	prepare();
	memset(long_name, 'x', sizeof long_name - 1);
	CALL("rename", "from nowhere", rename(NOWHERE, in_work("a")));
	CALL("rename", "to nowhere", rename(in_work("a"), NOWHERE));
	CALL("rename", "NULL", rename(NULL, NULL));
	CALL("rename", "a long name", rename(in_work("a"), long_name));
	CALL("rename", "to /proc", rename(in_work("a"), "/proc/a"));
	CALL("renameat", "a closed folder", renameat(999, "a", folder, "b"));
	CALL("renameat", "to a closed folder", renameat(folder, "a", 999, "b"));
	CALL("renameat", "absolute names", renameat(999, in_work("a"), -1, in_work("b")));
	CALL("renameat", "a file for a folder", renameat(0, "a", folder, "b"));
#ifdef __GLIBC__
	CALL("renameat2", "bad flags", renameat2(folder, "a", folder, "b", 1 << 20));
	CALL("renameat2", "nowhere", renameat2(folder, NOWHERE, folder, NOWHERE, 0));
#endif
	look();
}

static void creations(void)
{
	char byte;
	int fd;

	prepare();
	fd = CALL_FD("creat", "a", creat(in_work("a"), 0600));
	CALL("write", "creat", write(fd, "bytes", 5));
	CALL("read", "creat", read(fd, &byte, 1));
	CALL("F_GETFL", "creat", fcntl(fd, F_GETFL) & ~O_LARGEFILE);
	CALL("close", "creat", close(fd));
	close(CALL_FD("creat", "fresh", creat(in_work("fresh"), 0640)));
	CALL_FD("creat", "folder", creat(in_work("folder"), 0600));
	CALL_FD("creat", "missing/x", creat(in_work("missing/x"), 0600));
	CALL_FD("creat", "nowhere", creat(NOWHERE, 0600));
#ifdef __GLIBC__
	close(CALL_FD("creat64", "a", creat64(in_work("a"), 0600)));
#endif
	look();
}

int main(int count, char **arguments)
{
	int folder;

	begin(count, arguments);
	umask(022);
	folder = must(open(work, O_RDONLY | O_DIRECTORY), "folder");
	must(chdir(work), "chdir");
	pairs(folder);
	wrong_names(folder);
	creations();
	CALL("rename", "relative", rename("b", "folder/e"));
	CALL("rename", "relative, missing", rename("b", "folder/e"));
	return 0;
}
