"""A Redis of one's own in a folder, and what is asked of it."""

import os
import socket
import subprocess
import time


class Died(Exception):
    """The server ended; its last words."""


class Server:
    def __init__(self, folder, policy="always"):
        # The name of a socket has at most 107 bytes: it is in the folder, and both sides are too.
        os.chdir(folder)
        words = ["redis-server", "--port", "0", "--unixsocket", "socket", "--save", ""]
        words += ["--appendonly", "yes", "--appendfsync", policy]
        self.log = open("server.log", "w+")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        self.socket = socket.socket(socket.AF_UNIX)
        self.connect()
        self.answers = self.socket.makefile("rb")

    def connect(self):
        while True:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise Died((self.log.read().strip().splitlines() or ["no word"])[-1])
            try:
                return self.socket.connect("socket")
            except OSError:
                time.sleep(0.005)

    def ask(self, *words):
        words = [word.encode() for word in words]
        parts = [b"*%d\r\n" % len(words)] + [b"$%d\r\n%s\r\n" % (len(w), w) for w in words]
        self.socket.sendall(b"".join(parts))
        return self.answer()

    def answer(self):
        line = self.answers.readline().decode().rstrip()
        kind, rest = line[:1], line[1:]
        if kind == "$":
            return None if rest == "-1" else self.answers.read(int(rest) + 2)[:-2].decode()
        if kind == "*":
            return [self.answer() for _ in range(int(rest))]
        return rest if kind in "+:" else line
