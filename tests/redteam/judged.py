"""What synclater says, judged by a power cut. Words: HOW FOLDER ROUNDS SEED; or, as the check of a
state, `check SEED FOLDER LINES`; or `write FOLDER ROUND SEED HOW`, which a session runs.

Each round writes the round's number in every way there is, under a session that puts the syncs off;
the line `round N` is printed when synclater has said that it is durable: by its exit status, by that
of `settle FOLDER`, `detach` or an umount inside of the session, by `ps` where a bound is over, or by
the ledger where the supervisor was killed. In a state behind that line each file has that number,
or a later one.
"""
import glob
import json
import mmap
import os
import random
import subprocess
import sys
import time

BLOCK = 4096
BLOCKS = 8
SYNCLATER = os.environ.get("SYNCLATER", "synclater")
ME = os.path.abspath(__file__)
# Of a program outside of every session.
CLEAN = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "SYNCLATER_PAGE")}


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


def asked(*words):
    """What synclater answers to somebody outside of every session."""
    return subprocess.run([SYNCLATER, *words], stdout=subprocess.PIPE, env=CLEAN)


def until(holds, what):
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"{what}: not within 60 s")
        time.sleep(0.01)


def writer(folder, number, seed, how):
    return [sys.executable, "-B", ME, "write", folder, str(number), str(seed), how]


def acknowledge(number):
    print("round", number, flush=True)


def ran(words):
    """Runs a session to its end: its exit status is the promise."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, env=CLEAN)
    if done.returncode != 0:
        sys.exit(f"{words}: {done.returncode}")


def by_exit(how, folder, number, seed):
    options = {"follow": ["--follow"], "net": ["--net"]}.get(how, [])
    inner = writer(folder, number, seed, how)
    if how == "nested":
        inner = [SYNCLATER, "run", "--quiet", "-u", "1h", "--", *inner]
    ran([SYNCLATER, "run", "--quiet", "-u", "exit", *options, "--", *inner])
    acknowledge(number)


def by_settle(how, folder, number, seed):
    settle = '"$@" && env -u LD_PRELOAD -u SYNCLATER_PAGE "$S" settle "$D" >/dev/null'
    inner = ["sh", "-c", settle, "sh", *writer(folder, number, seed, how)]
    ran([SYNCLATER, "run", "--quiet", "-u", "1h", "--", *inner])
    acknowledge(number)


def by_bound(how, folder, number, seed):
    """The writer itself acknowledges, as soon as `ps` says that nothing is owed."""
    ran([SYNCLATER, "run", "--quiet", "-u", "200ms", "--", *writer(folder, number, seed, how)])


def by_umount(how, folder, number, seed):
    """A bind is enough: what is owed on the file system is settled before it goes."""
    bound = '"$@" && umount "$D" && echo round "$N"'
    there = os.path.join(folder, "bound")
    os.makedirs(there, exist_ok=True)
    subprocess.run(["mount", "--bind", folder, there], check=True)
    CLEAN.update(D=there, N=str(number))
    inner = ["sh", "-c", bound, "sh", *writer(there, number, seed, how)]
    ran([SYNCLATER, "run", "--quiet", "-u", "1h", "--", *inner])


def started(words):
    """Starts a writer that waits to be told, before and behind its round."""
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, env=CLEAN)


def written(process):
    process.stdin.write(b"go\n")
    process.stdin.flush()
    if process.stdout.readline() != b"written\n":
        sys.exit("the writer ended")


def by_attach(how, folder, number, seed):
    process = started(writer(folder, number, seed, how))
    process.stdout.readline()
    attached = asked("attach", "--json", "-u", "1h", "--pid", str(process.pid))
    if attached.returncode != 0:
        sys.exit("attach failed")
    written(process)
    if asked("detach", json.loads(attached.stdout)["id"]).returncode != 0:
        sys.exit("detach failed")
    acknowledge(number)
    process.communicate()


def by_keeper(how, folder, number, seed):
    """The supervisor is killed; its entry in the ledger is closed when nothing is owed any more."""
    words = [SYNCLATER, "run", "--quiet", "-u", "1h", "--", *writer(folder, number, seed, how)]
    process = started(words)
    process.stdout.readline()
    written(process)
    process.kill()
    process.wait()
    until(lambda: not owed(), "the keeper")
    acknowledge(number)
    process.stdin.close()
    # The writer itself, whose parent is gone: the round is over when its pipe is.
    process.stdout.read()


def owed():
    """The open entries of the ledger."""
    return glob.glob(os.path.join(os.environ["SYNCLATER_STATE_DIR"], "*.json"))


def debts():
    return [session["debt"] for session in json.loads(asked("ps", "--json").stdout)]


def write_as_told(how, folder, number, seed):
    """The writer of a session, and what it waits for."""
    waits = how in ("attach", "keeper")
    if waits:
        print("ready", flush=True)
        sys.stdin.readline()
    write(folder, number, seed)
    if how == "bound":
        until(lambda: not any(debts()), "ps")
        acknowledge(number)
    if waits:
        print("written", flush=True)
        sys.stdin.read()


WAYS = {
    "settle": by_settle,
    "bound": by_bound,
    "umount": by_umount,
    "attach": by_attach,
    "keeper": by_keeper,
}


def rounds(how, folder, number, seed):
    there = folder
    if how == "overlay":
        parts = {n: os.path.join(folder, n) for n in ("lower", "upper", "work", "merged")}
        for part in parts.values():
            os.makedirs(part, exist_ok=True)
        there = parts.pop("merged")
        options = ",".join(f"{n}dir={p}" for n, p in parts.items())
        subprocess.run(["mount", "-t", "overlay", "-o", options, "none", there], check=True)
    CLEAN.update(S=SYNCLATER, D=there)
    for n in range(1, number + 1):
        WAYS.get(how, by_exit)(how, there, n, seed)
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
        write_as_told(sys.argv[5], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        rounds(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
