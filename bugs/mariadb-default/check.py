#!/usr/bin/python3
"""check.py DIR ACKNOWLEDGED: MariaDB recovers, has every acknowledged row, and is whole."""

import os
import re
import subprocess
import sys
import time

folder, acknowledged = sys.argv[1:3]
here = os.path.dirname(os.path.abspath(__file__))
said = {int(line) for line in open(acknowledged)}
os.chdir(folder)
log = open("check.log", "w+")
# The name of a socket has at most 107 bytes: a short one is in the data directory.
words = ["mariadbd", f"--defaults-file={here}/my.cnf", f"--datadir={folder}/data", "--tmpdir=/tmp"]
words += ["--socket=s", f"--pid-file={folder}/check.pid"]
server = subprocess.Popen(words, stdout=log, stderr=log)
os.chdir("data")


def ask(sql):
    words = ["mariadb", "--no-defaults", "-N", "-B", "-S", "./s", "-e", sql]
    return subprocess.run(words, capture_output=True, text=True)


def bad(why):
    server.kill()
    server.wait()
    print(why)
    sys.exit(1)


while not os.path.exists("s") or ask("select 1").returncode:
    if server.poll() is not None:
        log.seek(0)
        errors = re.findall(r"\[ERROR\] (.*)", log.read())
        bad("it does not start: " + (errors or ["no word"])[0].replace(folder, "DIR"))
    time.sleep(0.02)
rows = ask("select x from d.t where y = repeat(concat(x, ' '), 300) and z = x * 37 % 101")
if rows.returncode:
    bad(rows.stderr.strip())
checked = ask("check table d.t extended").stdout.split()
if checked[-1:] != ["OK"]:
    bad("corrupt: " + " ".join(checked))
lost = sorted(said - {int(row) for row in rows.stdout.split()})
if lost:
    bad(f"lost: {len(lost)} of {len(said)} rows, the first is {lost[0]}")
server.kill()
server.wait()
