#!/usr/bin/python3
"""Commits one row after the other, with the default flags, and says so.

From the environment SYNC=0: without its syncs.
"""

import os

import lmdb

SYNC = os.environ.get("SYNC", "1") == "1"

env = lmdb.open("db", sync=SYNC, metasync=SYNC)
for row in range(int(os.environ.get("ROWS", "100"))):
    with env.begin(write=True) as txn:
        txn.put(b"%08d" % row, b"%08d" % row * 40)
    print(row, flush=True)
