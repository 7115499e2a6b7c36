/* sync: returns nothing, so only errno can be wrong. */
#include "victim.h"

int main(int count, char **arguments)
{
	begin(count, arguments);
	for (int i = 0; i < 23; i++)
		CALL("sync", "", (sync(), 0));
	return 0;
}
