#!/usr/bin/python3
"""Puts keys into an etcd, one after the other, by one connection: etcd_puts.py PORT PUTS.

Prints the seconds that it took. Ends with status 1 where a put is not answered as it should be.
"""
import base64
import http.client
import json
import sys
import time

port, puts = int(sys.argv[1]), int(sys.argv[2])
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)


def text(string):
    return base64.b64encode(string.encode()).decode()


begun = time.monotonic()
for k in range(puts):
    body = json.dumps({"key": text(f"key {k}"), "value": text(f"value {k}")})
    connection.request("POST", "/v3/kv/put", body)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    if answer.status != 200 or "header" not in told:
        sys.exit(f"put {k}: {answer.status} {told}")
print(time.monotonic() - begun)
