"""Stands where a session's supervisor is asked for slots, in a network namespace where nobody does.

  strangers.py PAGE SOCKET SIZE

gives whoever asks first a memory of its own. SOCKET and SIZE are where the page has the name of the
socket (32 bytes) and the size of the slots (4 bytes). It says `ready` once it listens.
"""

import array
import os
import socket
import struct
import sys

with open(sys.argv[1], "rb") as file:
    page = file.read(4096)
at, size_at = int(sys.argv[2]), int(sys.argv[3])
(version,) = struct.unpack_from("<I", page, 8)
(size,) = struct.unpack_from("<I", page, size_at)
slots = os.memfd_create("slots")
os.truncate(slots, size)
os.pwrite(slots, b"slatslot" + struct.pack("<I", version), 0)
listener = socket.socket(socket.AF_UNIX)
listener.bind(b"\0" + page[at : at + 32])
listener.listen()
print("ready", flush=True)
asker, _ = listener.accept()
given = array.array("i", [slots])
asker.sendmsg([b"s"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
