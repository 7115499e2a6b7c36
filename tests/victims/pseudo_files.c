/* fsync, fdatasync, syncfs, sync_file_range on descriptors that belong to no file on a disk. */
#include "victim.h"

int main(int count, char **arguments)
{
	begin(count, arguments);
	open_pseudo_files();
	EACH_KIND(k) {
		CALL("fsync", k->name, fsync(k->fd));
		CALL("fdatasync", k->name, fdatasync(k->fd));
		CALL("syncfs", k->name, syncfs(k->fd));
		CALL("sync_file_range", k->name, sync_file_range(k->fd, 0, 4096, 7));
	}
	return 0;
}
