/* A child of vfork(2) that tells its number, and stays in its parent's memory until it reads
 * something. Its parent stands still meanwhile.
 */
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	char text[32], byte;
	int n;

	if (!vfork()) {
		n = snprintf(text, sizeof text, "%d\n", (int)getpid());
		_exit(write(1, text, (size_t)n) != n || read(0, &byte, 1) < 0);
	}
	return 0;
}
