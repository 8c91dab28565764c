import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ampx import lock as lock_module
from ampx.lock import STALE_AFTER_S, Holder, Lock, TrialInUse, read_holder

ROOT = Path(__file__).parents[1]

TAKE = (
    "import sys, time; from pathlib import Path; from ampx.lock import Lock;"
    "lock = Lock.acquire(Path(sys.argv[1])); print('taken', flush=True); time.sleep(60)"
)


def start_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)


def start_holder(path: Path) -> subprocess.Popen[str]:
    process = start_python(TAKE, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def forge(path: Path, holder: Holder, *, silent_for_s: float = 0.0) -> None:
    """Leave the lock of a process that is not there."""
    path.write_text(json.dumps(asdict(holder)))
    os.utime(path, times=(time.time() - silent_for_s,) * 2)


def test_a_lock_names_its_holder_and_is_gone_after_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    lock = Lock.acquire(tmp_path / "lock")
    holder = read_holder(tmp_path / "lock")
    assert holder is not None
    assert (holder.host, holder.pid, holder.job) == (socket.gethostname(), os.getpid(), "4711")
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []
    assert read_holder(tmp_path / "lock") is None


def test_a_living_holder_keeps_everybody_else_out(tmp_path: Path) -> None:
    holder = start_holder(tmp_path / "lock")
    with pytest.raises(
        TrialInUse, match=rf"in use by process {holder.pid} on .*stop it with `kill {holder.pid}`"
    ):
        Lock.acquire(tmp_path / "lock")
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    end(holder)


def test_a_wait_outlasts_a_holder_that_is_about_to_leave(tmp_path: Path) -> None:
    holder = start_holder(tmp_path / "lock")
    subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {holder.pid}"])
    Lock.acquire(tmp_path / "lock", wait_s=10).release()
    end(holder)


def test_the_lock_of_a_killed_process_is_broken_at_once(tmp_path: Path) -> None:
    """A zombie counts as dead: its parent here has not waited for it. Broken by asking kill(pid, 0) alone."""
    holder = start_holder(tmp_path / "lock")
    holder.send_signal(signal.SIGKILL)
    time.sleep(0.1)
    lock = Lock.acquire(tmp_path / "lock")
    assert lock.broken is not None
    assert lock.broken.pid == holder.pid
    lock.release()
    end(holder)


def test_a_process_that_has_the_pid_of_a_dead_holder_does_not_keep_its_lock(tmp_path: Path) -> None:
    """Broken by comparing pids alone."""
    mine = Holder.current()
    forge(tmp_path / "lock", mine)
    with pytest.raises(TrialInUse):
        Lock.acquire(tmp_path / "lock")
    forge(tmp_path / "lock", replace(mine, started=(mine.started or 0) - 1))
    Lock.acquire(tmp_path / "lock").release()


@pytest.mark.parametrize("other", [{"host": "n2"}, {"machine": "another boot or container of this name"}])
def test_a_holder_elsewhere_is_given_up_after_a_minute_of_silence(
    tmp_path: Path, other: dict[str, str]
) -> None:
    elsewhere = replace(Holder.current(), pid=2**22 + 1, **other)
    forge(tmp_path / "lock", elsewhere, silent_for_s=STALE_AFTER_S - 5)
    with pytest.raises(TrialInUse):
        Lock.acquire(tmp_path / "lock")
    forge(tmp_path / "lock", elsewhere, silent_for_s=STALE_AFTER_S + 1)
    lock = Lock.acquire(tmp_path / "lock")
    assert lock.broken is not None
    assert lock.broken.host == elsewhere.host
    lock.release()


def test_a_stopped_process_on_this_machine_keeps_its_lock(tmp_path: Path) -> None:
    holder = start_holder(tmp_path / "lock")
    holder.send_signal(signal.SIGSTOP)
    os.utime(tmp_path / "lock", times=(0, 0))
    with pytest.raises(TrialInUse):
        Lock.acquire(tmp_path / "lock")
    end(holder)


def test_a_lock_that_its_taker_has_not_written_yet_is_not_stale(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with pytest.raises(TrialInUse, match="an unknown host"):
        Lock.acquire(tmp_path / "lock")
    os.utime(tmp_path / "lock", times=(0, 0))
    Lock.acquire(tmp_path / "lock").release()


def test_of_many_breakers_exactly_one_wins(tmp_path: Path) -> None:
    """Broken by judging the lock without flock: in some rounds two win."""
    rounds, racers = 300, 3
    dead = replace(Holder.current(), started=0)
    for number in range(rounds):
        forge(tmp_path / f"lock{number}", dead)
    script = (
        "import sys, time; from pathlib import Path; from ampx.lock import Lock, TrialInUse;\n"
        "held, start = [], float(sys.argv[2])\n"
        f"for number in range({rounds}):\n"
        "    while time.time() < start + 0.005 * number: pass\n"
        "    try: held.append(Lock.acquire(Path(sys.argv[1]) / f'lock{number}'))\n"
        "    except TrialInUse: pass\n"
        "    else: print(number, flush=True)\n"
        "print('done', flush=True); sys.stdin.read()"  # a lock is held until every racer has tried
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(time.time() + 1.0)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(racers)
    ]
    wins = [int(line) for process in processes for line in iter(process.stdout.readline, "done\n")]
    for process in processes:
        process.communicate(timeout=30)
    assert sorted(wins) == list(range(rounds))


def test_the_heartbeat_goes_on_while_the_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.02)
    lock = Lock.acquire(tmp_path / "lock")
    os.utime(tmp_path / "lock", times=(0, 0))
    time.sleep(0.3)
    assert time.time() - (tmp_path / "lock").stat().st_mtime < 60
    lock.release()


def test_a_holder_taken_for_dead_learns_it_and_leaves_the_new_lock_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken by releasing whatever lock is there."""
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.02)
    lock = Lock.acquire(tmp_path / "lock")
    forge(tmp_path / "new", replace(Holder.current(), host="n2"), silent_for_s=30)
    (tmp_path / "new").replace(tmp_path / "lock")
    before = (tmp_path / "lock").stat()
    time.sleep(0.3)
    assert lock.is_lost
    lock.release()
    assert (tmp_path / "lock").stat() == before


def test_a_forked_child_does_not_release_its_parents_lock(tmp_path: Path) -> None:
    lock = Lock.acquire(tmp_path / "lock")
    child = os.fork()
    if child == 0:
        lock.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "lock").exists()
    lock.release()
    assert not (tmp_path / "lock").exists()
