#!/usr/bin/python3
"""Sets one key after the other, and says so."""

import os

from server import Server

server = Server(".", os.environ.get("POLICY", "always"))
for key in range(int(os.environ.get("KEYS", "150"))):
    assert server.ask("SET", str(key), f"{key:08}" * 20) == "OK"
    print(key, flush=True)
server.process.kill()
