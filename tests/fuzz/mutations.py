"""Changes that keep most of a file's structure, so that what is broken is met deep inside its reader."""

from __future__ import annotations

import copy
import csv
import io
import json
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import yaml
from pyarrow import parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

__all__ = [
    "in_bytes",
    "in_columns",
    "in_database",
    "in_json",
    "in_lines",
    "in_parquet",
    "in_protobuf",
    "in_table",
    "in_yaml",
]

ODD: tuple[Any, ...] = (
    None, True, "", "x", "\x00", "\u202e=1+1", "-1", "1e400", 0, -1, 0.5, 1e308, -1e308, float("nan"),
    float("inf"), 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, [], {}, [[]], {"": None},
    "9" * 5000, "a" * 9999,
)  # fmt: skip
"""What stands where something else is meant."""
_DEEP, _MILD = 3000, 0.4
_CELLS = (
    "", "0", "0F99999999999", "2147483648F0", "0F0+9", "(0F0;0B0)OVERLAP_F_B", "-1F-1", "0F0 ", "=1+1", "\u0660F0",
)  # fmt: skip
_VARINT, _BYTES, _EIGHT, _FOUR = 0, 2, 1, 5


def in_json(content: bytes, random: Random) -> bytes:
    """Change values of a JSON document."""
    return _dumped(_changed(json.loads(content), random), random)


def in_lines(content: bytes, random: Random) -> bytes:
    """Change values of one of the JSON documents that are lines."""
    lines = content.splitlines()
    at = random.randrange(len(lines))
    lines[at] = in_json(lines[at], random)
    return b"\n".join(lines)


def in_yaml(content: bytes, random: Random) -> bytes:
    """Change values of a YAML document."""
    return yaml.safe_dump(_changed(yaml.safe_load(content), random), allow_unicode=True).encode(errors="replace")


def in_table(content: bytes, random: Random) -> bytes:
    """Change cells and rows of a CSV table."""
    rows = list(csv.reader(io.StringIO(content.decode())))
    for _ in range(random.choice([1, 1, 3])):
        row = random.choice(rows)
        cells = [cell for each in rows for cell in each]
        at = random.randrange(len(row)) if row else 0
        change = random.randrange(5)
        if change == 0:
            row[at : at + 1] = [random.choice(_CELLS)]
        elif change == 1:
            row[at : at + 1] = [random.choice(cells)]
        elif change == 2:
            row.insert(at, random.choice(cells))
        elif change == 3:
            rows.insert(random.randrange(len(rows)), list(row))
        else:
            del row[at : at + 1]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def in_columns(content: bytes, random: Random) -> bytes:
    """Repeat, rename or drop columns of a CSV table with a header, or change its cells and rows."""
    if random.random() < 0.4:
        return in_table(content, random)
    rows = list(csv.reader(io.StringIO(content.decode())))
    for _ in range(random.choice([1, 1, 3])):
        at, place = (random.randrange(len(rows[0])) for _ in range(2))
        change = random.randrange(4)
        if change == 0:
            for row in rows:
                row[place:place] = row[at : at + 1]
        elif change == 1:
            rows[0].insert(place, rows[0][at])
        elif change == 2:
            rows[0][at] = _name(rows[0], at, random)
        elif len(rows[0]) > 1:
            for row in rows:
                del row[at : at + 1]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _name(names: list[str], at: int, random: Random) -> str:
    """Return another name for a column: another column's, nearly its own, or an odd one."""
    name = names[at]
    near = (name.upper(), f" {name}", f"{name}.1", f"\ufeff{name}", name[:-1])
    return random.choice([random.choice(names), random.choice(near), "", "\x00", "a" * 9999])


def in_protobuf(content: bytes, random: Random) -> bytes:
    """Change fields of a protobuf message, at any depth."""
    fields = _fields(content)
    if not fields:
        return in_bytes(content, random)
    at = random.randrange(len(fields))
    number, wire, value = fields[at]
    change = random.randrange(5)
    if wire == _BYTES and change < 3:
        fields[at] = (number, wire, in_protobuf(value, random) if value else b"\xff" * random.randrange(9))
    elif wire == _VARINT and change < 3:
        fields[at] = (number, wire, random.choice([0, 1, value ^ 1, 2**31, 2**63, 2**64 - 1]))
    elif change == 3:
        fields.insert(random.randrange(len(fields)), fields[random.randrange(len(fields))])
    else:
        del fields[at]
    return b"".join(_written(*field) for field in fields)


def in_database(path: Path, random: Random) -> None:
    """Change rows, columns and tables of an SQLite database."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(random.randint(1, 3)):
            table = random.choice(tables)
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            if not columns:
                continue
            column, row = random.choice(columns), f"rowid = 1 + abs({random.getrandbits(30)}) % 20"
            odd = random.choice([item for item in ODD if not isinstance(item, (list, dict))])
            odd = odd if not isinstance(odd, int) or abs(odd) < 2**63 else float(odd)
            new = random.choice(["other", column.upper()])
            statement, given = random.choice(
                [
                    (f"UPDATE {table} SET {column} = ? WHERE {row}", (odd,)),
                    (f"UPDATE {table} SET {column} = ?", (odd,)),
                    (f"UPDATE {table} SET {column} = CAST(rowid AS BLOB) WHERE {row}", ()),
                    (f"DELETE FROM {table} WHERE {row}", ()),
                    (f"INSERT INTO {table} SELECT * FROM {table}", ()),
                    (f"ALTER TABLE {table} RENAME COLUMN {column} TO {new}", ()),
                    (f"DROP TABLE {table}", ()),
                ]
            )
            with suppress(sqlite3.Error):  # a change before this one took what it needs
                database.execute(statement, given)
        database.commit()


def in_parquet(path: Path, random: Random) -> None:
    """Change values, types and names of a parquet file's columns."""
    table = parquet.read_table(path)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        at = random.randrange(table.num_columns)
        name, column = table.column_names[at], table.column(at).to_pylist()
        change = random.randrange(8)
        if change > 5:
            table = _with_columns(table, at, random)
            continue
        if change < 3:
            odd = random.choice([item for item in ODD if not isinstance(item, (list, dict))])
            places = random.choice([[random.randrange(len(column))], range(len(column))])
            column = [
                odd if place in places else str(value) if isinstance(odd, str) else value
                for place, value in enumerate(column)
            ]
        elif change == 3:
            column = [value * 10**9 if isinstance(value, float) else value for value in column]
        elif change == 4:
            random.shuffle(column)
        else:
            less = table.remove_column(at) if table.num_columns > 1 else table
            table = random.choice([less, pa.concat_tables([table, table.slice(at)])])
            continue
        with suppress(pa.ArrowException, OverflowError):  # values that one column cannot hold
            table = table.set_column(at, name, pa.array(column))
    parquet.write_table(table, path)


def _with_columns(table: pa.Table, at: int, random: Random) -> pa.Table:
    """Return a table with a column twice, under its own name or another one, or renamed."""
    name = _name(table.column_names, at, random)
    if random.random() < 0.5:
        return table.rename_columns([*table.column_names[:at], name, *table.column_names[at + 1 :]])
    name = random.choice([table.column_names[at], name])
    return table.add_column(random.randrange(table.num_columns + 1), name, table.column(at))


def in_bytes(content: bytes, random: Random) -> bytes:
    """Change, drop, repeat or cut bytes anywhere."""
    at = random.randrange(len(content) + 1)
    length = random.choice([1, 1, 4, 64, len(content)])
    changes: list[Callable[[], bytes]] = [
        lambda: content[:at] + random.randbytes(min(length, 64)) + content[at + length :],
        lambda: content[:at] + content[at + length :],
        lambda: content[: at + length] + content[at:],
        lambda: content[:at],
    ]
    return random.choice(changes)()


def _changed(tree: Any, random: Random) -> Any:
    """Return a tree some of whose values are others."""
    tree = copy.deepcopy(tree)
    if random.random() < _MILD:
        return _nudged(tree, random)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        places = list(_places(tree))
        if not places:
            return random.choice(ODD)
        owner, key = random.choice(places)
        change = random.randrange(7)
        if change < 3:
            owner[key] = copy.deepcopy(random.choice(ODD))
        elif change == 3 and isinstance(owner[key], (int, float)):
            owner[key] = random.choice([-owner[key], owner[key] * 10**9, owner[key] + 1, str(owner[key])])
        elif change == 4:
            there, other = random.choice(places)
            owner[key] = copy.deepcopy(there[other])
        elif change == 5 and isinstance(owner, list):
            owner[key:key] = [copy.deepcopy(owner[key])] * random.choice([1, 9, 300])
        elif isinstance(owner, dict) and random.random() < 0.3:
            owner[f"{key}_"] = owner.pop(key)
        else:
            del owner[key]
    return tree


def _nudged(tree: Any, random: Random) -> Any:
    """Change some numbers to others that may be meant, so that what comes behind the checks is met."""
    numbers = [(owner, key) for owner, key in _places(tree) if type(owner[key]) in {int, float, bool}]
    for owner, key in random.sample(numbers, min(len(numbers), random.choice([1, 2, 4, 8]))):
        value = owner[key]
        whole = (value + 1, value * 2, value // 2 or 1, 1, 3, 0)
        other = {bool: (not value,), int: whole, float: (value * 0.75, value * 2, 0.0, 1.0)}
        owner[key] = random.choice(other[type(value)])
    return tree


def _places(tree: Any) -> Any:
    """Yield each place below: what holds it, and the key or number there."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        yield tree, key
        yield from _places(value)


def _dumped(tree: Any, random: Random) -> bytes:
    text = json.dumps(tree).encode(errors="replace")
    if random.random() < 0.02:
        nested = b"[" * _DEEP + b"]" * _DEEP
        text = text.replace(b"null", nested, 1) if b"null" in text else text.replace(b"1", nested, 1)
    return text


def _fields(content: bytes) -> list[tuple[int, int, Any]]:
    """Return a message's fields as number, wire type and value; none where it is no message."""
    fields, at = [], 0
    while at < len(content):
        key, at = _varint(content, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(content, at)
        elif wire in {_BYTES, _EIGHT, _FOUR}:
            length = 4 if wire == _FOUR else 8
            if wire == _BYTES:
                length, at = _varint(content, at)
            value, at = content[at : at + length], at + length
        else:
            return []
        if at > len(content) or not number:
            return []
        fields.append((number, wire, value))
    return fields


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < 64:
        value |= (content[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 128:
            return value, at
    return 0, len(content) + 1


def _written(number: int, wire: int, value: Any) -> bytes:
    start = _as_varint(number << 3 | wire)
    if wire == _VARINT:
        return start + _as_varint(value)
    return start + (_as_varint(len(value)) if wire == _BYTES else b"") + value


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])
