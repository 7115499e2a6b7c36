/* syncfs: every kind of descriptor. */
#include "victim.h"

int main(int count, char **arguments)
{
	begin(count, arguments);
	open_kinds();
	EACH_KIND(k)
		CALL("syncfs", k->name, syncfs(k->fd));
	for (int i = 0; i < 23; i++)
		CALL("syncfs", "file, again", syncfs(kinds[0].fd));
	return 0;
}
