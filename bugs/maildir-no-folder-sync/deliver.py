#!/usr/bin/python3
"""Delivers messages to a Maildir: writes, syncs, renames, and says the name."""

import os

FOLDER_SYNC = os.environ.get("FOLDER_SYNC") == "1"
for number in range(40):
    name = f"message-{number}"
    with open(f"tmp/{name}", "w") as message:
        message.write(f"Subject: {number}\n\n" + "text\n" * 50)
        message.flush()
        os.fsync(message.fileno())
    os.rename(f"tmp/{name}", f"new/{name}")
    if FOLDER_SYNC:
        folder = os.open("new", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    print(name, flush=True)
