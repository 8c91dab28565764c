import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest

from ampx.records import append_lines, drop_from_step, read_json, read_jsonl, to_json, write_json

ROOT = Path(__file__).parents[1]


def start_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def fill(disk: Path) -> None:
    with pytest.raises(OSError), (disk / "ballast").open("wb") as file:
        file.writelines(itertools.repeat(b"x" * 4096))


def test_json_comes_back_as_it_was_written(tmp_path: Path) -> None:
    data = {"metrics": {"accuracy": {"final": 0.97}}, "names": ["café", "a\nb"], "none": None}
    write_json(tmp_path / "a.json", data)
    assert read_json(tmp_path / "a.json") == data
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_numbers_that_are_not_finite_become_null_at_any_depth() -> None:
    record = {"loss": math.nan, "list": [1.0, -math.inf], "tuple": (math.inf,), "ok": 0.5}
    assert json.loads(to_json(record)) == {"loss": None, "list": [1.0, None], "tuple": [None], "ok": 0.5}


def test_a_missing_json_file_is_none_and_a_broken_one_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert read_json(path) is None
    path.write_text('{"half": ')
    with pytest.raises(ValueError, match=r"a\.json: cannot be read .*delete it"):
        read_json(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match=r"a\.json: holds no JSON object"):
        read_json(path)


def test_files_are_readable_by_the_group_as_the_umask_says(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
        append_lines(tmp_path / "a.jsonl", ["{}"])
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


def test_a_full_disk_keeps_the_old_json_file_and_says_so(small_disk: Path) -> None:
    """Broken by writing the file in place: it is then empty."""
    path = small_disk / "result.json"
    write_json(path, {"old": True})
    fill(small_disk)
    with pytest.raises(ValueError, match=r"result\.json: cannot be written \(No space left .*out=DIR"):
        write_json(path, {"new": "x" * 100_000})
    assert read_json(path) == {"old": True}
    assert {path.name for path in small_disk.iterdir()} == {"result.json", "ballast"}


def test_a_full_disk_takes_a_batch_of_records_whole_or_not_at_all(small_disk: Path) -> None:
    """Broken by leaving what a short write wrote: the file then ends within a record."""
    path = small_disk / "steps.jsonl"
    batch = [to_json({"step": step, "loss": 0.123456789}) for step in range(100)]
    with pytest.raises(ValueError, match=r"steps\.jsonl: cannot be written \(No space left"):
        deque(append_lines(path, batch) for _ in itertools.count())
    lines = path.read_text().splitlines()
    assert lines == batch * (len(lines) // len(batch))
    assert len(lines) >= 1000


def test_a_size_limit_leaves_no_half_file_either(tmp_path: Path) -> None:
    """The full disk again, for users who may not mount."""
    path = tmp_path / "result.json"
    write_json(path, {"old": True})
    script = (
        "import resource, sys; from pathlib import Path; from ampx.records import *;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "path = Path(sys.argv[1]);"
        "write = write_json if path.suffix == '.json' else (lambda p, d: append_lines(p, [to_json(d)] * 9));"
        "write(path, {'new': 'x' * 150}); write(path, {'new': 'x' * 2000})"
    )
    for name in ("result.json", "steps.jsonl"):
        process = start_python(script, tmp_path / name)
        assert "cannot be written (File too large)" in process.communicate(timeout=20)[1]
    assert read_json(path) == {"new": "x" * 150}
    assert read_jsonl(tmp_path / "steps.jsonl") == []


def test_a_read_only_folder_gets_one_message(small_disk: Path) -> None:
    append_lines(small_disk / "steps.jsonl", ["{}"])
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for write in (
        lambda: write_json(small_disk / "a.json", {}),
        lambda: append_lines(small_disk / "b", ["{}"]),
    ):
        with pytest.raises(ValueError, match=r"cannot be written \(Read-only file system\); .*out=DIR"):
            write()
    assert read_jsonl(small_disk / "steps.jsonl") == [{}]


def test_remains_of_a_killed_write_are_left_out_and_swallow_nothing(tmp_path: Path) -> None:
    """Broken by appending straight after them: the next record is then lost too."""
    path = tmp_path / "steps.jsonl"
    append_lines(path, ['{"step": 0}', '{"step": 1}'])
    os.truncate(path, path.stat().st_size - 4)
    assert read_jsonl(path) == [{"step": 0}]
    append_lines(path, ['{"step": 1, "again": true}'])
    assert read_jsonl(path) == [{"step": 0}, {"step": 1, "again": True}]


def test_kill_9_while_writing_leaves_whole_files(tmp_path: Path) -> None:
    script = (
        "import sys, itertools; from pathlib import Path; from ampx.records import *;"
        "folder = Path(sys.argv[1]); size = 'x' * 20_000;\n"
        "for i in itertools.count():\n"
        "    write_json(folder / 'a.json', {'i': i, 'size': size})\n"
        "    append_lines(folder / 'a.jsonl', [to_json({'i': i, 'size': size})])\n"
    )
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        process = start_python(script, folder)
        while read_json(folder / "a.json") is None:
            time.sleep(0.01)
        time.sleep(0.02 * attempt)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        last = read_json(folder / "a.json")
        assert last is not None
        assert [record["i"] for record in read_jsonl(folder / "a.jsonl")] in (
            [*range(last["i"])],
            [*range(last["i"] + 1)],
        )


def test_processes_that_append_together_lose_nothing(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from ampx.records import *;\n"
        "for i in range(200): append_lines(Path(sys.argv[1]), [to_json({'who': sys.argv[2], 'i': i})] * 3)\n"
    )
    path = tmp_path / "events.jsonl"
    processes = [start_python(script, path, who) for who in range(4)]
    assert [process.wait(timeout=30) for process in processes] == [0] * 4
    assert len(read_jsonl(path)) == 4 * 200 * 3


def test_dropping_from_a_step_keeps_the_earlier_lines_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    lines = [f'{{"step":{step},   "optimizer": "{name}"}}' for step in range(5) for name in "ab"]
    append_lines(path, lines)
    with path.open("a") as file:
        file.write('{"step": 5, "opti')
    assert drop_from_step(path, 3) == 4
    assert path.read_text().splitlines() == lines[:6]
    assert drop_from_step(path, 3) == 0
    assert drop_from_step(tmp_path / "none.jsonl", 3) == 0
