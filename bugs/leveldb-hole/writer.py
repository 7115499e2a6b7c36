#!/usr/bin/python3
"""Loads keys in order, each EVERYth with sync=True, and says that one."""

import os

import plyvel

KEYS = int(os.environ.get("KEYS", "20000"))
EVERY = int(os.environ.get("EVERY", "250"))
BUFFER = int(os.environ.get("BUFFER", "65536"))

db = plyvel.DB("db", create_if_missing=True, write_buffer_size=BUFFER)
for key in range(KEYS):
    sync = (key + 1) % EVERY == 0
    db.put(b"%08d" % key, b"%08d" % key * 12, sync=sync)
    if sync:
        print(key, flush=True)
