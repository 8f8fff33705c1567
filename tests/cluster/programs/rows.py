"""Write rows into an SQLite database, three in a transaction, each made from the one before; then compare them all.

rows.py DATABASE JOURNAL-MODE inside|outside COUNT PAUSE: the pauses are inside the transactions, or between them
"""

import hashlib
import sqlite3
import sys
import time

from holding import hold  # type: ignore[import-not-found]

path, mode, pauses, count, pause = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
connection = sqlite3.connect(path, isolation_level=None)
connection.execute("pragma cache_size=2")
connection.execute(f"pragma journal_mode={mode}")
connection.execute("create table rows (number integer, state text, filler blob)")
state, wanted = b"start", []
for number in range(count):
    hold(number, count)
    if number % 3 == 0:
        connection.execute("begin immediate")
    state = hashlib.sha256(state).digest()
    wanted.append((number, state.hex()))
    connection.execute("insert into rows values (?, ?, randomblob(3000))", wanted[-1])
    # Pages that are there already change, too.
    connection.execute("update rows set filler=randomblob(3000) where number % 5 = 0 and number > ?", (number - 20,))
    if pauses == "inside":
        time.sleep(pause)
    if number % 3 == 2 or number == count - 1:
        connection.execute("commit")
        if pauses == "outside":
            time.sleep(3 * pause)
    print(f"{mode} {pauses} {number}", flush=True)
found = connection.execute("select number, state from rows order by rowid").fetchall()
check = connection.execute("pragma integrity_check").fetchone()[0]
result = "exact" if (found, check) == (wanted, "ok") else f"{check}, {len(found)} rows"
print(mode, pauses, result, flush=True)
