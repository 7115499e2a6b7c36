"""APPENDs messages over one IMAP connection; prints the seconds it took, login not included.

    imap_append.py PORT MESSAGES
"""
import imaplib
import sys
import time

port, messages = int(sys.argv[1]), int(sys.argv[2])
TEXT = "lorem ipsum dolor sit amet\r\n" * 60
HEAD = "From: a@example.org\r\nTo: b@example.org\r\nSubject: {0}\r\nMessage-ID: <{0}@x.org>\r\n"

connection = imaplib.IMAP4("127.0.0.1", port, timeout=60)
connection.login("user", "word")
begin = time.perf_counter()
for number in range(messages):
    text = HEAD.format(number) + "\r\n" + TEXT
    answer, data = connection.append("INBOX", None, None, text.encode())
    assert answer == "OK", data
print(f"{time.perf_counter() - begin:.6f}")
connection.logout()
