/* plugged FOLDER: loads a library, and where it is static a second libc with it. Says "ready", and
 * for each line "sync NAME" syncs that file in FOLDER: "sync 0", or "sync ERRNO".
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
	char line[300];

	if (count != 2 || chdir(words[1]) || !dlopen("libnss_files.so.2", RTLD_NOW))
		return 2;
	setlinebuf(stdout);
	puts("ready");
	while (fgets(line, sizeof line, stdin)) {
		int fd;

		line[strcspn(line, "\n")] = 0;
		fd = open(line + strlen("sync "), O_WRONLY | O_CREAT | O_APPEND, 0600);
		if (fd < 0 || write(fd, "a", 1) != 1)
			return 1;
		printf("sync %d\n", fsync(fd) ? errno : 0);
		close(fd);
	}
	return 0;
}
