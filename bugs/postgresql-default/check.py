#!/usr/bin/python3
"""check.py DIR ACKNOWLEDGED: PostgreSQL recovers, has every acknowledged row, and is whole.

The server runs in its single-user mode: the recovery is the same, and no socket is needed.
"""

import glob
import os
import re
import subprocess
import sys

folder, acknowledged = sys.argv[1:3]
said = {int(line) for line in open(acknowledged)}
programs = glob.glob("/usr/lib/postgresql/*/bin/postgres")
postgres = max(programs, key=lambda path: int(path.split("/")[4]))
data = f"{folder}/data"
# After a power cut the number in it may be that of another process.
if os.path.exists(f"{data}/postmaster.pid"):
    os.remove(f"{data}/postmaster.pid")
SQL = """\
select id from t where length(filler) = 1920
select bt_index_check('t_pkey', true)
select count(*) as broken from verify_heapam('t')
"""
words = ["runuser", "-u", "postgres", "--", postgres, "--single", "-D", data, "postgres"]
run = subprocess.run(words, input=SQL, text=True, capture_output=True)
trouble = re.search(r"^.*(ERROR|FATAL|PANIC):.*$", run.stderr, re.M)
if trouble or run.returncode:
    last = trouble[0] if trouble else f"status {run.returncode}: {run.stderr.strip()[-200:]}"
    print(re.sub(r"^[-0-9]+ [0-9:.]+ \S+ \[\d+\] ", "", last))
    sys.exit(1)
have = {int(id) for id in re.findall(r'id = "(\d+)"', run.stdout)}
if re.search(r'broken = "[^0]', run.stdout) or 'broken = "0"' not in run.stdout:
    print("corrupt: verify_heapam finds something")
    sys.exit(1)
lost = sorted(said - have)
if lost:
    print(f"lost: {len(lost)} of {len(said)} rows, the first is {lost[0]}")
sys.exit(bool(lost))
