#!/usr/bin/python3
"""check.py DIR ACKNOWLEDGED: the keys begin with the first, and reach the last that was synced."""

import sys

import plyvel

folder, acknowledged = sys.argv[1:3]
said = [int(line) for line in open(acknowledged)]
try:
    db = plyvel.DB(f"{folder}/db", create_if_missing=not said)
    torn = []
    have = []
    for key, value in db:
        have.append(int(key))
        if value != key * 12:
            torn.append(int(key))
except plyvel.Error as error:
    print(str(error).replace(folder, "DIR"))
    sys.exit(1)
last = said[-1] if said else -1
holes = sorted(set(range(max(have + [last]) + 1)) - set(have))
if torn:
    print(f"torn: {len(torn)} values, the first of key {torn[0]}")
elif holes:
    where = "a hole" if holes[0] < max(have, default=-1) else "the end"
    print(f"lost: {where}, {len(holes)} keys from {holes[0]}; synced to {last}; have {len(have)}")
sys.exit(bool(torn or holes))
