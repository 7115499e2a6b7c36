/* __open_2 asked to create a file: glibc ends the program, since the mode would be garbage. */
#include "victim.h"

#ifdef __GLIBC__
extern int __open_2(const char *path, int flags);
#endif

int main(int count, char **arguments)
{
	begin(count, arguments);
	printf("before\n");
#ifdef __GLIBC__
	/* Its words go to the terminal where there is one, else to stderr: away with both. */
	setsid();
	close(2);
	__open_2(in_work("file"), O_CREAT | O_WRONLY | O_SYNC);
#endif
	printf("after\n");
	return 0;
}
