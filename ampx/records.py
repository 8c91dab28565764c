"""JSON files and JSON-lines files that survive a kill, a full disk and a crash.

A JSON file is replaced whole or not at all. A line of a JSON-lines file is complete, or it is the
remains of a killed write, which reading leaves out. NaN and infinity are not JSON: they become null.
"""

import contextlib
import fcntl
import json
import math
import os
import secrets
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def write_text(path: Path, text: str) -> None:
    """Replace `path` atomically and durably; ValueError, and the old content, where that fails."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with writing(path):
        try:
            _write_new(temporary, text.encode())
            temporary.replace(path)
            sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Record) -> None:
    """Replace `path` atomically with `data`, indented."""
    write_text(path, to_json(data, indent=2) + "\n")


def read_json(path: Path) -> Record | None:
    """The object in `path`, None where there is no such file; ValueError where it is not an object."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); restore it or delete it") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path}: holds no JSON object; restore it or delete it")
    return data


def append_lines(path: Path, lines: Sequence[str]) -> None:
    """Append complete lines in one write; where it fails (a full disk), none of them and a ValueError."""
    if not lines:
        return
    assert not any("\n" in line for line in lines), "a record is one line"
    with writing(path):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            exclusive(descriptor)
            _append(descriptor, ("\n".join(lines) + "\n").encode())
        finally:
            os.close(descriptor)


def read_jsonl(path: Path) -> list[Record]:
    """The records of `path` without the remains of killed writes; no file is no records."""
    records = (parse(line) for line in _read_bytes(path).splitlines())
    return [record for record in records if record is not None]


def parse(line: bytes) -> Record | None:
    """The record in a line, None where there is none or only the remains of one."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def sync(path: Path) -> None:
    """Make the content of `path` durable; no file has nothing to lose."""
    with writing(path), contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def drop_from_step(path: Path, step: int) -> int:
    """Drop the records whose `step` is `step` or later, and remains; returns how many records went."""
    lines = _read_bytes(path).splitlines()
    records = [(line, record) for line in lines if (record := parse(line)) is not None]
    kept = [line for line, record in records if record.get("step", -1) < step]
    if len(kept) < len(lines):
        write_text(path, b"".join(line + b"\n" for line in kept).decode())
    return len(records) - len(kept)


def to_json(value: object, *, indent: int | None = None) -> str:
    """`value` as JSON with null for every number that is not finite."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, indent=indent)


@contextlib.contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn an OSError into the message a user can act on."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.filename and Path(error.filename) in path.parents:
            reason = f"{reason}: {error.filename}"
        way_out = "free space or fix the permissions there, or choose another folder with out=DIR"
        raise ValueError(f"{path}: cannot be written ({reason}); {way_out}") from error


def exclusive(descriptor: int) -> None:
    """Hold the file against every other process that asks, until the descriptor is closed.

    A file system without locks grants it to everybody: what is guarded must be nearly safe without.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def sync_directory(path: Path) -> None:
    """Make renames inside `path` durable, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse to sync a directory
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_new(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _append(descriptor: int, data: bytes) -> None:
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        data = b"\n" + data  # what a killed write left must not swallow the next record
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); fix its permissions") from error


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
