/* Asks the library's matcher about each line of a file, `mode<TAB>pattern<TAB>text`: prints 0 or 1.
 *
 * Linked with crates/shim/c/base/glob.c.
 */
#include "base/glob.h"
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments)
{
	static char line[16384];
	FILE *cases = count == 2 ? fopen(arguments[1], "r") : NULL;

	if (!cases) {
		fprintf(stderr, "usage: glob_lines FILE\n");
		return 2;
	}
	while (fgets(line, sizeof line, cases)) {
		char *pattern = strchr(line, '\t'), *text = pattern ? strchr(pattern + 1, '\t') : NULL;

		line[strcspn(line, "\n")] = 0;
		if (!text)
			return 2;
		*text++ = 0;
		puts(sl_glob(pattern + 1, text, line[0] == '1') ? "1" : "0");
	}
	return 0;
}
