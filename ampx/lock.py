"""Who works in a trial directory: one process at a time, on one machine or many.

The file `lock` is created with O_EXCL and holds who took it; its modification time is the heartbeat.
A dead holder's lock is replaced by the breaker's own in one rename, under flock on the file that was
judged, so that of several breakers exactly one wins. Where the file system has no flock, a loser finds
out at its next heartbeat: `Lock.is_lost`.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from ampx.records import exclusive, to_json, writing
from ampx.status import to_utc, utc_now

HEARTBEAT_S = 10.0
STALE_AFTER_S = 60.0


class TrialInUse(ValueError):  # noqa: N818 - says what is, as FileExistsError does
    """Another process works in the trial."""

    def __init__(self, trial: Path, holder: "Holder") -> None:
        super().__init__(
            f"{trial}: in use by {holder}; wait for it, stop it with `kill {holder.pid}` on {holder.host}, "
            f"or choose another name=NAME. A dead process's lock is broken by itself: at once on its own "
            f"machine, {STALE_AFTER_S:.0f} s after the last sign of life elsewhere"
        )
        self.holder = holder


@dataclass(frozen=True, slots=True)
class Holder:
    """What the lock file holds: the process, and enough to tell whether it still lives.

    `machine` tells apart machines, boots and containers that share a host name; `started`, in clock
    ticks since boot, tells apart processes that share a pid. `heartbeat` is seconds since 1970.
    """

    host: str = "an unknown host"
    machine: str = ""
    pid: int = 0
    started: int | None = None
    job: str | None = None
    taken: str = ""
    heartbeat: float = 0.0

    def __str__(self) -> str:
        job = f" (SLURM job {self.job})" if self.job else ""
        return f"process {self.pid} on {self.host}{job}, last sign of life {to_utc(self.heartbeat)}"

    @classmethod
    def current(cls) -> "Holder":
        """This process, now."""
        pid = os.getpid()
        return cls(
            host=socket.gethostname(),
            machine=_machine(),
            pid=pid,
            started=_start_time(pid),
            job=os.environ.get("SLURM_JOB_ID"),
            taken=utc_now(),
            heartbeat=time.time(),
        )

    def is_stale(self, now: float) -> bool:
        """Whether it is dead, or on another machine and silent for too long before `now`."""
        if (self.host, self.machine) == (socket.gethostname(), _machine()):
            return not _is_alive(self.pid, self.started)
        return now - self.heartbeat > STALE_AFTER_S


class TrialLostError(Exception):
    """This process was taken for dead and another one works in its trial: it must write nothing more."""


class Lock:
    """A lock that this process took; a thread keeps its heartbeat going until `release`."""

    def __init__(self, path: Path, descriptor: int, *, broken: Holder | None = None) -> None:
        self.broken = broken  # the dead holder whose lock this one replaced
        self.is_lost = False  # somebody took this process for dead and broke its lock
        self._path = path
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._released = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="trial lock heartbeat", daemon=True)
        self._heart.start()

    @classmethod
    def acquire(cls, path: Path, *, wait_s: float = 0.0) -> "Lock":
        """Take the lock, breaking a stale one; TrialInUse if a living process keeps it for `wait_s`."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                if lock := _create(path) or _break(path):
                    return lock
            except TrialInUse:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)

    def release(self) -> None:
        """Give the lock back, unless it is no longer ours, or was never this forked child's."""
        if self._pid != os.getpid() or self._released.is_set():
            return
        self._released.set()
        self._heart.join()
        exclusive(self._descriptor)
        if _is_at(self._path, self._descriptor):
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            if not _is_at(self._path, self._descriptor):
                self.is_lost = True
                return
            with contextlib.suppress(OSError):  # a file system may be away for a moment
                os.utime(self._descriptor)


def read_holder(path: Path) -> Holder | None:
    """Who holds, or held, the lock at `path`; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _create(path: Path) -> Lock | None:
    with writing(path):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return None
        try:
            _write_holder(descriptor)
        except OSError:
            path.unlink(missing_ok=True)
            raise
    return Lock(path, descriptor)


def _break(path: Path) -> Lock | None:
    """The lock that replaces a stale one, None if it changed hands meanwhile, TrialInUse if not stale."""
    temporary = path.with_name(f".lock.{secrets.token_hex(4)}.tmp")
    with writing(path), contextlib.ExitStack() as undo:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        undo.callback(os.close, descriptor)
        undo.callback(temporary.unlink, missing_ok=True)
        _write_holder(descriptor)
        # the age of a heartbeat is taken on the file server's clock, whatever this machine's says
        broken = _replace_stale(path, temporary, now=os.fstat(descriptor).st_mtime)
        if broken is None:
            return None
        undo.pop_all()
    return Lock(path, descriptor, broken=broken)


def _replace_stale(path: Path, replacement: Path, *, now: float) -> Holder | None:
    try:
        judged = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        exclusive(judged)
        if not _is_at(path, judged):
            return None
        holder = _read(judged)
        if not holder.is_stale(now):
            raise TrialInUse(path.parent, holder)
        replacement.replace(path)
        return holder
    finally:
        os.close(judged)


def _write_holder(descriptor: int) -> None:
    os.write(descriptor, to_json(asdict(Holder.current())).encode())


def _read(descriptor: int) -> Holder:
    """The holder in an open lock file; unknown where its taker has not written it, or never will."""
    heartbeat = os.fstat(descriptor).st_mtime
    try:
        record = json.loads(os.pread(descriptor, 1 << 16, 0))
        holder = Holder(**{field.name: record[field.name] for field in fields(Holder)})
    except (ValueError, KeyError, TypeError):
        holder = Holder()
    return replace(holder, heartbeat=heartbeat)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # unreachable for a moment is not lost


def _is_alive(pid: int, started: int | None) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's process
    return started is None or _start_time(pid) in (started, None)


def _start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None if nobody says, -1 for a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields_after_name = text.rpartition(")")[2].split()
    return -1 if fields_after_name[0] in "ZX" else int(fields_after_name[19])


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
