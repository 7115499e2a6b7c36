/* fsync: every kind of descriptor. */
#include "victim.h"

int main(int count, char **arguments)
{
	begin(count, arguments);
	open_kinds();
	EACH_KIND(k)
		CALL("fsync", k->name, fsync(k->fd));
	for (int i = 0; i < 23; i++)
		CALL("fsync", "file, again", fsync(kinds[0].fd));
	return 0;
}
