#!/usr/bin/python3
"""check.py DIR ACKNOWLEDGED: every row that was acknowledged is there, and all are whole."""

import os
import sys

import lmdb

folder, acknowledged = sys.argv[1:3]
said = [int(line) for line in open(acknowledged)]
have = []
torn = []
if os.path.exists(f"{folder}/db/data.mdb") or said:
    try:
        with lmdb.open(f"{folder}/db", create=not said) as env, env.begin() as txn:
            for key, value in txn.cursor():
                have.append(int(key))
                if value != key * 40:
                    torn.append(int(key))
            entries = txn.stat()["entries"]
    except (lmdb.Error, ValueError) as error:
        print(str(error).replace(folder, "DIR"))
        sys.exit(1)
    if torn or have != list(range(entries)):
        print(f"corrupt: {len(torn)} values torn, {len(have)} of {entries} rows read")
        sys.exit(1)
lost = sorted(set(said) - set(have))
if lost:
    print(f"lost: {len(lost)} of {len(said)} rows, the first is {lost[0]}")
sys.exit(bool(lost))
