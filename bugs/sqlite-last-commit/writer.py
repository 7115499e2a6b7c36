#!/usr/bin/python3
"""Commits one row after the other, and says so."""

import os
import sqlite3

db = sqlite3.connect("test.db", isolation_level=None)
db.execute(f"pragma journal_mode={os.environ.get('JOURNAL', 'delete')}")
db.execute(f"pragma synchronous={os.environ.get('SYNCHRONOUS', 'full')}")
db.execute("create table t(a)")
for row in range(int(os.environ.get("ROWS", "60"))):
    db.execute("insert into t values(?)", (row,))
    print(row, flush=True)
