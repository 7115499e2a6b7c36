#!/usr/bin/python3
"""check.py DIR ACKNOWLEDGED: every acknowledged row is there, and the database is whole."""

import sqlite3
import sys

folder, acknowledged = sys.argv[1:3]
said = [int(line) for line in open(acknowledged)]
try:
    db = sqlite3.connect(f"{folder}/test.db")
    whole = db.execute("pragma integrity_check").fetchone()[0]
    have = {row[0] for row in db.execute("select a from t")} if said else set()
except sqlite3.Error as error:
    print(error)
    sys.exit(1)
lost = [row for row in said if row not in have]
if whole != "ok":
    print("corrupt:", whole)
elif lost:
    print("lost", lost)
sys.exit(bool(lost or whole != "ok"))
