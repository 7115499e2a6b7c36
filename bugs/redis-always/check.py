#!/usr/bin/python3
"""check.py DIR ACKNOWLEDGED: Redis starts, and has every key that was acknowledged."""

import os
import sys

from server import Died, Server

folder, acknowledged = sys.argv[1:3]
said = open(acknowledged).read().split()
if os.path.exists(f"{folder}/socket"):
    os.remove(f"{folder}/socket")
try:
    server = Server(folder)
    while server.ask("PING").startswith("-LOADING"):
        pass
    values = server.ask("MGET", *said) if said else []
except Died as died:
    print("it does not start:", died)
    sys.exit(1)
server.process.kill()
server.process.wait()
lost = [int(key) for key, value in zip(said, values) if value is None]
torn = [int(key) for key, value in zip(said, values) if value not in (None, f"{int(key):08}" * 20)]
if torn:
    print(f"torn: {len(torn)} values, the first of key {torn[0]}")
elif lost:
    print(f"lost: {len(lost)} of {len(said)} keys, the first is {lost[0]}")
sys.exit(bool(torn or lost))
