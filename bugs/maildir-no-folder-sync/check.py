#!/usr/bin/python3
"""check.py DIR ACKNOWLEDGED: every message that was acknowledged is there, and whole."""

import os
import sys

folder, acknowledged = sys.argv[1:3]
bad = []
for name in open(acknowledged).read().split():
    path = f"{folder}/new/{name}"
    text = open(path).read() if os.path.exists(path) else None
    want = f"Subject: {name.rsplit('-', 1)[1]}\n\n" + "text\n" * 50
    if text is None:
        bad.append(f"lost {name}")
    elif text != want:
        bad.append(f"torn {name}")
if bad:
    print(bad[0])
sys.exit(bool(bad))
