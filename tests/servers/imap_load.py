"""Several IMAP connections that stay open and APPEND messages when they are told to.

    imap_load.py PORT USER CONNECTIONS

Each line of stdin is a number of messages; the answer is the seconds that all connections together
took for them. At the end of the input every message is fetched and compared, and "N whole" is said.
"""
import imaplib
import sys
import threading
import time

port, user, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
TEXT = "lorem ipsum dolor sit amet\r\n" * 60
HEAD = "From: a@example.org\r\nTo: b@example.org\r\nSubject: {0}\r\nMessage-ID: <{0}@x.org>\r\n"


def text_of(number):
    return (HEAD.format(number) + "\r\n" + TEXT).encode()


def connect():
    connection = imaplib.IMAP4("127.0.0.1", port, timeout=60)
    connection.login(user, "word")
    return connection


connections = [connect() for _ in range(count)]
numbers = iter(range(1 << 30))
lock = threading.Lock()
failed = []


def append(connection, share):
    try:
        for _ in range(share):
            with lock:
                number = next(numbers)
            answer, data = connection.append("INBOX", None, None, text_of(number))
            assert answer == "OK", data
    except Exception as e:
        failed.append(e)


print("ready", flush=True)
total = 0
for line in sys.stdin:
    messages = int(line)
    threads = [
        threading.Thread(target=append, args=(c, messages // count)) for c in connections
    ]
    total += messages // count * count
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    print(f"{time.perf_counter() - begin:.6f}", flush=True)

reader = connections[0]
answer, data = reader.select("INBOX", readonly=True)
assert (answer, int(data[0])) == ("OK", total), (answer, data, total)
seen = set()
for at in range(1, total + 1):
    answer, data = reader.fetch(str(at), "(BODY[])")
    whole = data[0][1]
    number = int(whole.split(b"Subject: ")[1].split(b"\r\n")[0])
    assert whole == text_of(number), number
    seen.add(number)
assert seen == set(range(total)), len(seen)
for connection in connections:
    connection.logout()
print(f"{total} whole", flush=True)
