"""Unmounts all that is named on its command line, at the same moment: a thread each.

It says how many of these were refused.
"""

import ctypes
import os
import sys
import threading

MNT_DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)
refused = []


def unmount(path, at_once):
    at_once.wait()
    if libc.umount2(os.fsencode(path), MNT_DETACH) != 0:
        refused.append(path)


paths = sys.argv[1:]
barrier = threading.Barrier(len(paths))
threads = [threading.Thread(target=unmount, args=(path, barrier)) for path in paths]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(refused))
