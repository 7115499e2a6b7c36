/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Glob matching, the same as model::policy::glob; a test runs both on the same inputs.
 *
 * Bytes, not characters. `*` any bytes, `?` one byte, `[a-z]` one of, `[!a]` or `[^a]` none of,
 * `\x` x itself. An unterminated `[` is itself. In path mode `*`, `?` and `[...]` stop at '/', and
 * `**` (or more) does not. No recursion: on a mismatch the last `*` takes one byte more, and where
 * that may not go on, the last `**` does; so the time is bounded by pattern x text per `**`.
 */
#include "base/glob.h"
#include <stddef.h>

/* Matches C against the set that starts behind '['. Returns the pattern behind the set, or NULL
 * where the set has no end. *HIT tells whether C is in it. */
static const char *match_set(const char *p, unsigned char c, int *hit)
{
	int negate = *p == '!' || *p == '^', found = 0;
	const char *first;

	p += negate;
	for (first = p; *p && (*p != ']' || p == first);) {
		unsigned char from, to;

		if (*p == '\\' && p[1])
			p++;
		from = to = (unsigned char)*p++;
		if (*p == '-' && p[1] && p[1] != ']') {
			p++;
			if (*p == '\\' && p[1])
				p++;
			to = (unsigned char)*p++;
		}
		found |= from <= c && c <= to;
	}
	if (!*p)
		return NULL;
	*hit = found != negate;
	return p + 1;
}

/* Matches one element of the pattern against one byte; returns the pattern behind it, or NULL. */
static const char *match_one(const char *p, unsigned char c, int path_mode)
{
	const char *end;
	int hit;

	if (path_mode && c == '/')
		return *p == '/' || (*p == '\\' && p[1] == '/') ? p + 1 + (*p == '\\') : NULL;
	switch (*p) {
	case 0:
		return NULL;
	case '?':
		return p + 1;
	case '[':
		end = match_set(p + 1, c, &hit);
		if (end)
			return hit ? end : NULL;
		return c == '[' ? p + 1 : NULL;
	case '\\':
		if (p[1])
			p++;
		/* fall through */
	default:
		return (unsigned char)*p == c ? p + 1 : NULL;
	}
}

int sl_glob(const char *p, const char *t, int path_mode)
{
	const char *star = NULL, *star_text = NULL, *deep = NULL, *deep_text = NULL, *next;

	for (;;) {
		if (*p == '*') {
			int two = p[1] == '*';

			while (*p == '*')
				p++;
			if (two || !path_mode) {
				deep = p, deep_text = t;
				star = NULL;
			} else {
				star = p, star_text = t;
			}
			continue;
		}
		if (!*t && !*p)
			return 1;
		if (*t && (next = match_one(p, (unsigned char)*t, path_mode))) {
			p = next, t++;
		} else if (star && *star_text && *star_text != '/') {
			p = star, t = ++star_text;
		} else if (deep && *deep_text) {
			p = deep, t = ++deep_text;
			star = NULL;
		} else {
			return 0;
		}
	}
}
