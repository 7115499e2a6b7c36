"""A disk whose flush fails while somebody else waits for it. Words: OUT, in the folder to write in.

With APPEND_ONLY in its environment the folder is made append-only first. With READ_ONLY_FIRST it
becomes a mount that is read-only by itself, and what is written goes through a later one, `second`.
With NOBODY it is a folder of that user's in the one that is mounted.

In a session it makes files and asks for their durability, which is put off; then somebody outside
syncs the file system. OUT gets a line: `heard`, where that one was told of a failure, or `not`; and
how many files were acknowledged.
"""
import glob
import os
import subprocess
import sys
import time

FILES = 20
CLEAN = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "SYNCLATER_PAGE")}


def save(name):
    """Whether it was acknowledged. It stays open: its end is the program's."""
    try:
        fd = os.open(name, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
        os.write(fd, b"k" * 4096)
        os.fsync(fd)
        return True
    except OSError:
        return False


def is_entered(here):
    """Whether the ledger has what lies there: a moment later requests are put off."""
    texts = []
    for path in glob.glob(os.path.join(os.environ["SYNCLATER_STATE_DIR"], "*.json")):
        with open(path, encoding="utf-8") as file:
            texts.append(file.read())
    return any(f'"{here}"' in text for text in texts)


def main():
    if os.environ.get("APPEND_ONLY"):
        subprocess.run(["chattr", "+a", "."], check=True)
    here = os.path.dirname(os.getcwd()) if os.environ.get("NOBODY") else os.getcwd()
    if os.environ.get("READ_ONLY_FIRST"):
        os.mkdir("second")
        for words in ["--bind . second", "-o remount,bind,ro ."]:
            subprocess.run(["mount", *words.split()], check=True, env=CLEAN)
        os.chdir("second")
    save("warm")
    end = time.monotonic() + 20
    while not is_entered(here) and time.monotonic() < end:
        pass
    # Each answer is a turn of the supervisor's loop.
    for _ in range(5):
        subprocess.run([os.environ["SYNCLATER"], "ps"], env=CLEAN, stdout=subprocess.DEVNULL)
    saved = sum(save(f"file-{k}") for k in range(FILES))
    other = subprocess.run(["sync", "-f", "."], env=CLEAN, stderr=subprocess.DEVNULL)
    with open(sys.argv[1], "w", encoding="ascii") as out:
        print("heard" if other.returncode else "not", saved, file=out)


main()
