"""Changes of what commands keep between runs: compiled kernels, OptPipe's searches, and journals."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from .mutations import in_bytes, in_database, in_json

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

__all__ = ["OTHER_JOURNAL", "in_cache", "in_journal", "in_searches"]

OTHER_JOURNAL = "other.journal"
"""The file beside a journal that holds the rows of another command or configuration."""
_HEADS = (32, 65)
"""Bytes of the digests at the start of kept kernels and searches."""
_DEEP = 100_000
_ROWS = ("[]", "{}", '{"point": "x"}', '{"point": 1e999}', "7", "null", "[" * _DEEP, '{"a":' * _DEEP)
"""Contents of rows whose checksum is right."""
_VALUES = {
    "rows": ([], [[]], ["123"], [["123"]], [["0F"]], [["F0"]], [["0Z0"]], [["0O0"]], {}, [["0O999"], ["9O0"]]),
    "step": (float("inf"), -1, "1", None, 10**30),
    "bound": (float("inf"), -1, 10**30, -(10**30), "1", None, []),
    "seconds": (float("inf"), float("nan"), -1, "1", None),
    "costs": ([], [float("inf")], ["1"], None),
    "sizes": (7, None, "\x1b[31m"),
}
"""Values of a search whose digest is right."""


def in_cache(folder: Path, random: Random) -> None:
    """Exchange, cut, empty or overwrite files of a folder, or put folders and files in their places."""
    files = sorted(folder.iterdir())
    contents = [file.read_bytes() for file in files]
    index, other, head = random.randrange(len(files)), random.randrange(len(files)), random.choice(_HEADS)
    change = random.randrange(8)
    if change == 0:
        contents = contents[index:] + contents[:index]
    elif change == 1:
        contents[index] = contents[other]
    elif change == 2:
        contents[index] = contents[other][:head] + contents[index][head:]
    elif change == 3:
        contents = [in_bytes(content, random) for content in contents]
    elif change == 4:
        contents[index] = random.choice([b"", random.randbytes(len(contents[index]))])
    else:
        contents[index] = in_bytes(contents[index], random)
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    if change == 6:
        files[index].unlink()
        files[index].mkdir()
    elif change == 7:
        shutil.rmtree(folder)
        folder.write_bytes(contents[index])


def in_searches(folder: Path, random: Random) -> None:
    """Change OptPipe's cache as any, or values of one of its searches, and make the digest match these."""
    if random.random() < 0.4:
        in_cache(folder, random)
        return
    file = random.choice(sorted(folder.iterdir()))
    text = file.read_text(encoding="utf-8").partition("\n")[2]
    if random.random() < 0.4:
        text = in_json(text.encode(), random).decode(errors="replace")
    else:
        key = random.choice(list(_VALUES))
        text = json.dumps(json.loads(text) | {key: random.choice(_VALUES[key])})
        if random.random() < 0.2:
            text = random.choice([text.replace('"costs"', '"sizes"'), "[" * _DEEP, '{"rows":' * _DEEP, "[]", "0"])
    text = text.replace("Infinity", "1e999")
    digest = hashlib.sha256(f"{file.name}\n{text}".encode()).hexdigest()
    file.write_text(f"{digest}\n{text}", encoding="utf-8")


def in_journal(file: Path, random: Random) -> None:
    """Change bytes or rows of a journal, or put another file in its place or beside it."""
    change = random.randrange(9)
    if change < 2:
        file.write_bytes(in_bytes(file.read_bytes(), random))
    elif change < 4:
        in_database(file, random)
    elif change in {4, 8}:
        _change_row(file, random)
    elif change == 5:
        lines = b'{"pptrace-sweep":1}\n{"point":"x"}\n'
        file.write_bytes(random.choice([b"", b"\n", lines, b"SQLite format 3\0" * 9, random.randbytes(5000)]))
    elif change == 6:
        shutil.copy(file.with_name(OTHER_JOURNAL), file)
    else:
        _leave_beside(file, random)


def _change_row(file: Path, random: Random) -> None:
    """Change values of a row under its old checksum, or put other content there with the right checksum."""
    with closing(sqlite3.connect(file)) as database:
        row, content, digest = random.choice(database.execute("SELECT rowid, * FROM finished").fetchall())
        if random.random() < 0.6:
            content = in_json(content, random)
        else:
            content = random.choice(_ROWS).encode()
            digest = hashlib.sha256(content).digest()
        changed = (content, digest, row)
        database.execute("UPDATE finished SET content = ?, digest = ? WHERE rowid = ?", changed)
        database.commit()


def _leave_beside(file: Path, random: Random) -> None:
    """Put beside a database what SQLite leaves of a transaction that was cut off, whole or changed."""
    mode, suffix = random.choice([("WAL", "-wal"), ("DELETE", "-journal")])
    copied = shutil.copy(random.choice([file, file.with_name(OTHER_JOURNAL)]), file.with_name("copied"))
    with closing(sqlite3.connect(copied, isolation_level=None)) as database:
        for statement in (f"PRAGMA journal_mode = {mode}", "PRAGMA cache_size = 1", "BEGIN"):
            database.execute(statement)
        for _ in range(20):
            database.execute("INSERT INTO finished SELECT zeroblob(9000), digest FROM finished LIMIT 1")
            database.execute("UPDATE finished SET digest = zeroblob(32) WHERE rowid = 1")
        if mode == "WAL":
            database.execute("COMMIT")
        left = copied.with_name(copied.name + suffix).read_bytes()
    for path in file.parent.glob("copied*"):
        path.unlink()
    left = left if random.random() < 0.3 else in_bytes(left, random)
    file.with_name(file.name + suffix).write_bytes(random.choice([left, left, random.randbytes(5000)]))
