"""What synclater says, judged by a power cut. Words: HOW FOLDER ROUNDS SEED; or, as the check of a
state, `check SEED FOLDER LINES`; or `write FOLDER ROUND SEED`, which a session runs.

Each round writes the round's number in every way there is, under a session that puts the syncs off;
the line `round N` is printed when synclater has said that it is durable: by its exit status, or by
that of `settle FOLDER`. In a state behind that line each file has that number, or a later one.
"""
import mmap
import os
import random
import subprocess
import sys

BLOCK = 4096
BLOCKS = 8
SYNCLATER = os.environ.get("SYNCLATER", "synclater")


def stamp(number):
    return (b"%08d" % number) * (BLOCK // 8)


def number_in(block):
    """The number that fills BLOCK; -1 if it is torn, or was never written."""
    word = block[:8]
    return int(word) if word.isdigit() and block == word * (BLOCK // 8) else -1


def descriptor(folder, name, flags=0):
    return os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT | flags)


def whole(folder, name, flags=0):
    """A file whose blocks are there already, to be overwritten in place."""
    fd = descriptor(folder, name, flags)
    if os.fstat(fd).st_size < BLOCKS * BLOCK:
        os.posix_fallocate(fd, 0, BLOCKS * BLOCK)
    return fd


def by_direct(fd, number):
    memory = mmap.mmap(-1, BLOCK)
    memory.write(stamp(number))
    for block in range(BLOCKS):
        os.pwritev(fd, [memory], block * BLOCK)


def by_mapping(fd, number):
    with mmap.mmap(fd, BLOCKS * BLOCK) as memory:
        for block in range(BLOCKS):
            memory[block * BLOCK : (block + 1) * BLOCK] = stamp(number)
        memory.flush()


def outsider(folder, chance):
    """Somebody whom nobody sees forces the log."""
    out = os.path.join(folder, "outsider")
    if chance.random() < 0.6:
        words = ["dd", "if=/dev/zero", f"of={out}", "bs=512", "count=1", "conv=fdatasync"]
        subprocess.run(words, env={"PATH": "/usr/bin:/bin"}, stderr=subprocess.DEVNULL, check=True)


def ways_of(number, seed):
    """Which ways a round takes; in the first all. Often it is overwritten only: then the log is soon
    clean."""
    chance = random.Random(f"{seed} {number}")
    in_place = ["over", "map", "direct"]
    if number > 1 and chance.random() < 0.6:
        return chance.sample(in_place, chance.randint(1, 3)), chance
    ways = [*in_place, "append", "new"]
    chance.shuffle(ways)
    return ways, chance


def write(folder, number, seed):
    ways, chance = ways_of(number, seed)
    # The first requests of a session are real: until its ledger has the file system.
    warm = descriptor(folder, "warm")
    for _ in range(40):
        os.pwrite(warm, b"w", 0)
        os.fdatasync(warm)
    os.close(warm)
    for way in ways:
        if way == "over":
            fd = whole(folder, way)
            for block in range(BLOCKS):
                os.pwrite(fd, stamp(number), block * BLOCK)
        elif way == "append":
            fd = descriptor(folder, way, os.O_APPEND)
            os.write(fd, stamp(number))
        elif way == "map":
            fd = whole(folder, way)
            by_mapping(fd, number)
        elif way == "direct":
            fd = whole(folder, way, os.O_DIRECT)
            by_direct(fd, number)
        else:
            fd = descriptor(folder, "new.part", os.O_TRUNC)
            os.write(fd, stamp(number))
            os.fdatasync(fd)
            os.rename(os.path.join(folder, "new.part"), os.path.join(folder, f"new-{number}"))
            above = os.open(folder, os.O_RDONLY)
            os.fsync(above)
            os.close(above)
        os.fdatasync(fd)
        os.close(fd)
        outsider(folder, chance)


def session(how, inner):
    """The words of a session in which INNER is run."""
    options = {"follow": ["--follow"], "net": ["--net"]}.get(how, [])
    dial = "1h" if how == "settle" else "exit"
    words = [SYNCLATER, "run", "--quiet", "-u", dial, *options, "--"]
    if how == "nested":
        words += [SYNCLATER, "run", "--quiet", "-u", "1h", "--"]
    if how == "settle":
        settle = '"$@" && env -u LD_PRELOAD -u SYNCLATER_PAGE "$S" settle "$D"'
        inner = ["sh", "-c", settle, "sh", *inner]
    return words + inner


def rounds(how, folder, number, seed):
    for name in ("LD_PRELOAD", "SYNCLATER_PAGE"):
        os.environ.pop(name, None)
    there = folder
    if how == "overlay":
        parts = {n: os.path.join(folder, n) for n in ("lower", "upper", "work", "merged")}
        for part in parts.values():
            os.makedirs(part, exist_ok=True)
        there = parts.pop("merged")
        options = ",".join(f"{n}dir={p}" for n, p in parts.items())
        subprocess.run(["mount", "-t", "overlay", "-o", options, "none", there], check=True)
    os.environ.update(S=SYNCLATER, D=there)
    for n in range(1, number + 1):
        me = [sys.executable, "-B", os.path.abspath(__file__), "write", there, str(n), str(seed)]
        # Some of its first requests are real: enough follow that are not.
        done = subprocess.run(session(how, me), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            sys.exit(f"round {n}: {done.returncode}")
        print("round", n, flush=True)
    if how == "overlay":
        subprocess.run(["umount", there], check=True)


def check(seed, folder, lines):
    with open(lines, encoding="ascii") as file:
        said = max([int(line.split()[1]) for line in file if line.startswith("round")], default=0)
    upper = os.path.join(folder, "upper")
    folder = upper if os.path.isdir(upper) else folder
    last = {}
    for number in range(1, said + 1):
        for way in ways_of(number, seed)[0]:
            last[f"new-{number}" if way == "new" else way] = number
    # What the next round is about to change may be torn by it; not what is as new as this one.
    for name, number in last.items():
        with open(os.path.join(folder, name), "rb") as file:
            text = file.read()
        found = [number_in(text[at : at + BLOCK]) for at in range(0, len(text), BLOCK)]
        good = number in found if name == "append" else all(f >= number for f in found) and found
        if not good:
            sys.exit(f"lost: {name} has {found}, was {number} at round {said}")


if __name__ == "__main__":
    if sys.argv[1] == "check":
        check(int(sys.argv[2]), *sys.argv[3:5])
    elif sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        rounds(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
