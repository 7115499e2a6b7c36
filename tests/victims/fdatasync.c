/* fdatasync: every kind of descriptor. */
#include "victim.h"

int main(int count, char **arguments)
{
	begin(count, arguments);
	open_kinds();
	EACH_KIND(k)
		CALL("fdatasync", k->name, fdatasync(k->fd));
	for (int i = 0; i < 23; i++)
		CALL("fdatasync", "file, again", fdatasync(kinds[0].fd));
	return 0;
}
