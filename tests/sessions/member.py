"""A member of a session that does what it is told, one line of stdin at a time, and says one line
for each:

  sync NAME       as `demand` does: `sync 0`
  as USER WORD..  has a process of this user do something to what it has of the session, and says
                  what that says:
    cut           cuts its slots short: the name of the error, or `done`
    future        writes a tick of the future into every debt: `done`
    clear         clears every debt: `done`
    owe           writes debts without a pause by four processes that outlive the session, until there
                  is a file `stop`, or for half a minute: `done`
    boast         counts as many requests as can be in two processes: `done`
    storm         names a process of a pid namespace in each slot, and there is none: `done`
    claim PID HOW says in a slot that it is this process's, and `real`: that it made all requests
                  there can be, or `kept`: that it holds what cannot be told: `done`
    impersonate PID says in a ring that it is this process's, and that it executes /innocent: `done`
                  once that was read, or the ring taken away
    unmount PATH  says in a slot that its parent is about to unmount what that lies on: `done` once
                  it was told that it may
    find TEXT     looks for it in all that it gets of slots and rings: `found`, or `nothing`
    sync NAME     as above
    besiege WORD..  becomes `besieger.py` with these: what that says
  beside N WORD PROGRAM
                  starts PROGRAM, as `demand` is, and has it WORD a file so often: `beside PID`
  give USER NAME  opens a file that wants each write durable, and has a process of this user write
                  to that descriptor: `done`
"""

import array
import errno
import mmap
import os
import socket
import struct
import subprocess
import sys
import time

# Where they begin in c/core/page.h, and how long they are. Not the debts of sync(): to settle those takes
# as long as the machine's slowest disk.
DEBTS, CELLS = 64, 64 * 16
SLOTS, SLOT, REQUESTS = 8896, 640, 128
RINGS, RING_MAX, HISTOGRAM, CELL = 69632, 512, 8192, 64
OSYNC_KEPT = 4
ASKED = 1


def sync(name):
    fd = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
    os.write(fd, b"a")
    os.fsync(fd)
    os.close(fd)
    return "sync 0"


def shared():
    """Descriptors of slots and rings, opened by their paths or asked for, as the library does."""
    page = os.environ["SYNCLATER_PAGE"]
    try:
        beside = [os.path.join(os.path.dirname(page), name) for name in ("slots", "rings")]
        return [os.open(path, os.O_RDWR) for path in beside if os.path.exists(path)]
    except PermissionError:
        pass
    with open(page, "rb") as file:
        head = file.read(4096)
    at = head.index(b"synclater-")
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.connect(b"\0" + head[at : at + 32])
    fds = array.array("i")
    _, messages, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(4 * fds.itemsize))
    for _, _, data in messages:
        fds.frombytes(data)
    return list(fds)


def cut():
    try:
        os.ftruncate(shared()[0], 0)
    except OSError as e:
        return errno.errorcode[e.errno]
    return "done"


def write_debts(tick):
    fd = shared()[0]
    slots = mmap.mmap(fd, os.fstat(fd).st_size)
    for cell in range(CELLS):
        at = DEBTS + 8 * cell
        slots[at : at + 8] = struct.pack("=Q", tick)
    return "done"


def owe():
    fd = shared()[0]
    slots = mmap.mmap(fd, os.fstat(fd).st_size)
    debts = struct.pack("=Q", 1) * CELLS
    for _ in range(4):
        if os.fork():
            continue
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        end = time.monotonic() + 30
        while not os.path.exists("stop") and time.monotonic() < end:
            for _ in range(100):
                slots[DEBTS : DEBTS + len(debts)] = debts
        os._exit(0)
    return "done"


def boast():
    fd = shared()[0]
    slots = mmap.mmap(fd, os.fstat(fd).st_size)
    for process in (os.getpid(), os.getppid()):
        at = SLOTS + SLOT * (1 + process % 511)
        slots[at : at + 4] = struct.pack("=I", process)
        for shard in range(8):
            counter = at + REQUESTS + 64 * shard
            slots[counter : counter + 8] = b"\xff" * 8
    return "done"


def write_slot(slots, index, pid, namespace=0, flags=0, real=0):
    at = SLOTS + SLOT * index
    slots[at : at + 16] = struct.pack("=2IQ", pid, flags, namespace)
    slots[at + REQUESTS : at + REQUESTS + 16] = struct.pack("=2Q", real, real)


def storm():
    fd = shared()[0]
    slots = mmap.mmap(fd, os.fstat(fd).st_size)
    for index in range(1, 512):
        write_slot(slots, index, 1000 + index, namespace=4026000000 + index)
    return "done"


def claim(pid, how):
    fd = shared()[0]
    slots = mmap.mmap(fd, os.fstat(fd).st_size)
    what = {"real": 1 << 40} if how == "real" else {"flags": OSYNC_KEPT}
    # The first is for those that found none.
    write_slot(slots, 5 if int(pid) else 0, int(pid), **what)
    return "done"


def impersonate(pid):
    fd = shared()[1]
    rings = mmap.mmap(fd, os.fstat(fd).st_size)
    index, at = 400, 64 + 128 * 400
    cells = RINGS + index * ((len(rings) - RINGS) // RING_MAX) + HISTOGRAM
    text = b"/innocent\0innocent\0"
    process, more = 5, 3
    rings[cells : cells + 4] = struct.pack("=I", process | 2 << 8)
    rings[cells + 4 : cells + 8] = struct.pack("=I", int(pid))
    rings[cells + 60 : cells + 64] = struct.pack("=HH", len(text), 0)
    rings[cells + CELL : cells + CELL + 4] = struct.pack("=I", more | 1 << 8 | 1 << 16)
    rings[cells + CELL + 4 : cells + CELL + 4 + len(text)] = text
    namespace = os.stat("/proc/self/ns/pid").st_ino
    rings[at + 4 : at + 24] = struct.pack("=IQQ", 1, namespace, 2)
    rings[16:20] = struct.pack("=I", RING_MAX)
    rings[at : at + 4] = struct.pack("=I", int(pid))
    own, tail = slice(at, at + 4), slice(at + 64, at + 72)
    while rings[own] != bytes(4) and rings[tail] != struct.pack("=Q", 2):
        os.sched_yield()
    return "done"


def unmount(path):
    fd = shared()[0]
    slots = mmap.mmap(fd, os.fstat(fd).st_size)
    at = SLOTS + SLOT * 5
    dev = os.stat(path).st_dev
    slots[at : at + 4] = struct.pack("=I", os.getppid())
    slots[at + 24 : at + 32] = struct.pack("=Q", os.major(dev) << 32 | os.minor(dev))
    slots[at + 56 : at + 64] = bytes(8)
    slots[at + 32 : at + 36] = struct.pack("=I", ASKED)
    while slots[at + 32 : at + 36] == struct.pack("=I", ASKED):
        os.sched_yield()
    return "done"


def beside(count, word, program):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = subprocess.Popen([program, "."], **pipes)
    started.stdout.readline()
    for _ in range(int(count)):
        started.stdin.write(f"{word} beside\n")
        started.stdin.flush()
        started.stdout.readline()
    # It goes on until we end.
    BESIDE.append(started)
    return f"beside {started.pid}"


BESIDE = []


def holds(fd, text):
    at = 0
    while True:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return False
        end = os.lseek(fd, at, os.SEEK_HOLE)
        if text in os.pread(fd, end - at, at):
            return True
        at = end


def find(text):
    return "found" if any(holds(fd, text.encode()) for fd in shared()) else "nothing"


def besiege(*words):
    script = os.path.join(os.path.dirname(__file__), "besieger.py")
    os.execv(sys.executable, [sys.executable, script, *words])


def put(fd):
    os.write(int(fd), b"a")
    return "done"


def serve(folder):
    os.chdir(folder)
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word in ("sync", "beside"):
            print(sync(*rest) if word == "sync" else beside(*rest), flush=True)
            continue
        user, *rest = rest
        fds = []
        if word == "give":
            fds = [os.open(rest[0], os.O_CREAT | os.O_WRONLY | os.O_SYNC, 0o600)]
            rest = ["put", str(fds[0])]
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
        command += [sys.executable, __file__, "do", *rest]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, pass_fds=fds)
        print(done.stdout.strip() or f"status {done.returncode}", flush=True)


DEEDS = {
    "besiege": besiege,
    "cut": cut,
    "future": lambda: write_debts(1 << 62),
    "boast": boast,
    "storm": storm,
    "claim": claim,
    "clear": lambda: write_debts(0),
    "find": find,
    "impersonate": impersonate,
    "owe": owe,
    "put": put,
    "unmount": unmount,
    "sync": sync,
}

if sys.argv[1] == "do":
    print(DEEDS[sys.argv[2]](*sys.argv[3:]), flush=True)
else:
    serve(sys.argv[1])
