/* __open_2 and its sisters, which glibc's headers call in fortified builds. */
#include "open_sync.h"

#ifdef __GLIBC__
extern int __open_2(const char *path, int flags);
extern int __open64_2(const char *path, int flags);
extern int __openat_2(int at, const char *path, int flags);
extern int __openat64_2(int at, const char *path, int flags);

/* These have no mode: glibc ends a program that asks them to create a file. */
#define WITHOUT_MODE (~(O_CREAT | O_EXCL | (O_TMPFILE & ~O_DIRECTORY)))

int main(int count, char **arguments)
{
	int at;

	begin(count, arguments);
	prepare_openings();
	at = must(open(work, O_RDONLY | O_DIRECTORY), "work");
	OPEN_EVERYTHING("__open_2", at, __open_2(path, flags & WITHOUT_MODE));
	OPEN_EVERYTHING("__open64_2", at, __open64_2(path, flags & WITHOUT_MODE));
	OPEN_EVERYTHING("__openat_2", at, __openat_2(at, name, flags & WITHOUT_MODE));
	OPEN_EVERYTHING("__openat64_2", at, __openat64_2(at, name, flags & WITHOUT_MODE));
	return 0;
}
#else
int main(int count, char **arguments)
{
	begin(count, arguments);
	printf("this libc has no __open_2\n");
	return 0;
}
#endif
