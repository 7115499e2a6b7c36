"""A member of root's session who is another user, and whose file system stops answering:

  besieger.py FUSE folder      opens a folder there, and leaves every later open of it unanswered;
                               then it syncs that: `held` once somebody waits for an answer, or
                               `free` when nobody does for two seconds
  besieger.py FUSE name FILE   leaves every look for `program` there unanswered; then a program
                               without the library syncs FILE, whose own path, seen from outside,
                               leads to that: `free`

It is an overlay whose lower layer is a FUSE of its own, in namespaces of its own. It serves on in
the background until it is killed.
"""

import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading

INIT, LOOKUP, GETATTR, OPENDIR, READDIR = 26, 1, 3, 27, 28
RELEASE, FLUSH, RELEASEDIR, STATFS, NOSYS = 18, 25, 29, 17, 38
FORGETS = (2, 36, 42)
NEWNS, NEWUSER, REC_PRIVATE = 0x20000, 0x10000000, 0x44000
ROOT, FOLDER = 1, 2

libc = ctypes.CDLL(None, use_errno=True)
device, what, *rest = sys.argv[1:]
besieges, held = threading.Event(), threading.Event()


def mount(source, at, kind, flags, options):
    words = [word.encode() for word in (source, at, kind)]
    if libc.mount(*words, flags, options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {kind}")


def attributes(node):
    ids = (0o40755, 2, os.getuid(), os.getgid(), 0, 4096, 0)
    return struct.pack("=6Q10I", node, 4096, 8, 0, 0, 0, 0, 0, 0, *ids)


def is_held(call, name):
    wanted = call == OPENDIR if what == "folder" else (call, name) == (LOOKUP, b"program")
    return besieges.is_set() and wanted


def answer(call, node, body):
    """What a call is told: an errno, and bytes."""
    if call == INIT:
        return 0, struct.pack("=4I2H2I2H8I", 7, 31, 131072, 0, 12, 10, 131072, 1, 32, *[0] * 9)
    if call == LOOKUP and body.rstrip(b"\0") == b"folder":
        return 0, struct.pack("=4Q2I", FOLDER, 0, 3600, 3600, 0, 0) + attributes(FOLDER)
    if call == LOOKUP:
        return 2, b""
    if call == GETATTR:
        return 0, struct.pack("=Q2I", 3600, 0, 0) + attributes(node)
    if call == OPENDIR:
        return 0, struct.pack("=Q2I", 1, 0, 0)
    if call == STATFS:
        return 0, struct.pack("=5Q10I", *[1000] * 5, 4096, 255, 4096, *[0] * 7)
    if call in (READDIR, RELEASE, FLUSH, RELEASEDIR):
        return 0, b""
    return NOSYS, b""


def serve(fuse):
    while True:
        try:
            call = os.read(fuse, 1 << 18)
        except OSError:
            return
        _, number, unique, node = struct.unpack_from("=2I2Q", call)
        if is_held(number, call[40:].rstrip(b"\0")):
            held.set()
        elif number not in FORGETS:
            errno, body = answer(number, node, call[40:])
            try:
                os.write(fuse, struct.pack("=IiQ", 16 + len(body), -errno, unique) + body)
            except OSError:
                pass  # who asked has ended


def settle_in():
    user, group = os.getuid(), os.getgid()
    if libc.unshare(NEWUSER | NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    maps = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    mount("none", "/", "", REC_PRIVATE, "")
    mount("none", "/mnt", "tmpfs", 0, "")
    for name in ("fuse", "lower", "overlay"):
        os.mkdir(f"/mnt/{name}")
    fuse = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    who = f"user_id={os.getuid()},group_id={os.getgid()}"
    mount("fuse", "/mnt/fuse", "fuse", 0, f"fd={fuse},rootmode=40000,{who},allow_other")
    threading.Thread(target=serve, args=(fuse,), daemon=True).start()
    mount("none", "/mnt/overlay", "overlay", 0, "lowerdir=/mnt/fuse:/mnt/lower")


def besiege_by_name(file):
    besieges.set()
    folder = f"/proc/{os.getpid()}/root/mnt/overlay"
    # Over the real one: so that the program has this path.
    mount("none", "/proc", "tmpfs", 0, "")
    os.makedirs(folder)
    program = shutil.copy("/usr/bin/dd", f"{folder}/program")
    words = ["if=/dev/zero", f"of={file}", "bs=1", "count=1", "conv=fsync", "status=none"]
    subprocess.run([program, *words], env={}, check=True)
    return "free"


def besiege_by_folder():
    folder = os.open("/mnt/overlay/folder", os.O_RDONLY | os.O_DIRECTORY)
    besieges.set()
    for _ in range(20):
        os.fsync(folder)
        if held.wait(0.1):
            break
    return "held" if held.is_set() else "free"


reader, writer = os.pipe()
if os.fork():
    os.close(writer)
    print(os.read(reader, 80).decode(), flush=True)
    os._exit(0)
os.close(reader)
os.dup2(os.open("/dev/null", os.O_RDWR), 1)
try:
    settle_in()
    said = besiege_by_name(*rest) if what == "name" else besiege_by_folder()
except OSError as error:
    said = f"cannot: {error}"
os.write(writer, said.encode())
os.close(writer)
if said in ("held", "free"):
    signal.pause()
