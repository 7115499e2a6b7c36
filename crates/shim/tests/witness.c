/* SPDX-License-Identifier: Apache-2.0 OR MIT
 * Prints name, offset and size of every field of page.h and rings.h, as this compiler lays them
 * out. */
#include <stdio.h>
#include <stddef.h>
#include "../c/watch/rings.h"
#define F(s, f) printf(#s "." #f " %zu %zu\n", offsetof(struct s, f), sizeof(((struct s *)0)->f))
int main(void)
{
	printf("SL_VERSION 0 %u\n", SL_VERSION);
	printf("marks %d %d\n", SL_MARK_DSYNC, SL_MARK_SYNC);
	F(sl_fs, state); F(sl_fs, held); F(sl_fs, dev);
	F(sl_name, dev); F(sl_name, mount); F(sl_name, fs); F(sl_name, turn);
	F(sl_rule, exe); F(sl_rule, path); F(sl_rule, users); F(sl_rule, user_count); F(sl_rule, class_);
	F(sl_page, magic); F(sl_page, version); F(sl_page, size); F(sl_page, lease_until);
	F(sl_page, lease_span); F(sl_page, clock); F(sl_page, relax); F(sl_page, error);
	F(sl_page, several); F(sl_page, now_mask); F(sl_page, rule_count);
	F(sl_page, record); F(sl_page, rules_at);
	F(sl_page, ring_cells);
	F(sl_page, rule_needs); F(sl_page, slots_size); F(sl_page, filters);
	F(sl_page, sync_ok); F(sl_page, socket); F(sl_page, fs); F(sl_page, names);
	F(sl_page, slow); F(sl_page, scale); F(sl_page, net); F(sl_page, told);
	F(sl_page, heard);
	F(sl_shard, requests); F(sl_shard, real); F(sl_shard, failed); F(sl_shard, hints);
	F(sl_shard, ticks); F(sl_shard, hints_real); F(sl_shard, timed); F(sl_shard, elsewhere);
	F(sl_slot, pid); F(sl_slot, flags); F(sl_slot, pid_ns); F(sl_slot, ask_dev);
	F(sl_slot, umount_dev); F(sl_slot, umount_mount); F(sl_slot, ask_fd);
	F(sl_slot, umount); F(sl_slot, uid); F(sl_slot, lost);
	F(sl_slot, kept); F(sl_slot, shard);
	F(sl_slots, magic); F(sl_slots, version); F(sl_slots, size); F(sl_slots, doorbell);
	F(sl_slots, stripped); F(sl_slots, want_sync); F(sl_slots, owed);
	F(sl_slots, debt); F(sl_slots, fs_requests); F(sl_slots, in_memory); F(sl_slots, took);
	F(sl_slots, slot); F(sl_slots, tsyncs);
	F(sl_ring, pid); F(sl_ring, backed); F(sl_ring, pid_ns); F(sl_ring, head); F(sl_ring, lost);
	F(sl_ring, tail);
	F(sl_rings, magic); F(sl_rings, version); F(sl_rings, count);
	F(sl_rings, bell); F(sl_rings, ring);
	F(sl_hist_shard, count);
	F(sl_hist, shard);
	return 0;
}
