/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Which file lies at an address of this process: PROCMAP_QUERY, Linux 6.11. Callers are told of by
 * it, and msync asks it, too.
 */
#include "watch/watch.h"

#define MAP_QUERY_IOCTL 0xc0686611ul

/* Asks what is mapped at ADDRESS, with FLAGS; the name goes to NAME, which has SIZE bytes. */
long sl_map_query(long maps, struct map_query *q, uint64_t address, uint64_t flags, char *name,
		  uint32_t size)
{
	*q = (struct map_query){ .size = sizeof *q,
				 .flags = flags,
				 .addr = address,
				 .name_size = size,
				 .name = (uintptr_t)name };
	return raw3(NR_ioctl, maps, MAP_QUERY_IOCTL, q);
}

/* The file that is mapped at ADDRESS, and where in it that lies. Returns the length of its name, or
 * -errno. */
long sl_map_at(uint64_t address, char *name, uint32_t size, struct map_query *q)
{
	long maps = sl_open_proc("self/maps", 0), r;

	if (is_error(maps))
		return maps;
	r = sl_map_query(maps, q, address, 0, name, size);
	raw1(NR_close, maps);
	if (is_error(r))
		return r;
	return q->name_size ? (long)q->name_size - 1 : 0;
}

long sl_file_at(uint64_t address, char *name, uint32_t size, uint64_t *offset)
{
	struct map_query *q = ROOM(sizeof *q);
	long r = sl_map_at(address, name, size, q);

	if (!is_error(r))
		*offset = address - q->start + q->offset;
	sl_leave(q);
	return r;
}
