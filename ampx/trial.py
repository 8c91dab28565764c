"""The trial directory: its files, its lock, its state. Everything a trial leaves is written through here."""

import contextlib
import json
import secrets
import shutil
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ampx import records
from ampx.lock import Holder, Lock, TrialInUse, read_holder
from ampx.names import safe_name
from ampx.records import Record
from ampx.status import Request, RequestKind, State, Status, to_utc, utc_now

_DIED = "its process ended without a word (killed, machine lost, or disk full)"


class TrialExists(ValueError):  # noqa: N818 - says what is, as FileExistsError does
    """The place of a new trial is taken."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial directory. Build with `create` or `open`."""

    path: Path

    @classmethod
    def create(cls, path: Path | str, *, config_text: str, overrides: Sequence[str]) -> "Trial":
        """Make the whole directory at once, `pending`; TrialExists where something is already there."""
        path = Path(path).absolute()
        assert safe_name(path.name) == path.name, f"{path.name!r} must pass safe_name first"
        with records.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            trial = cls(path.with_name(f".new-{secrets.token_hex(6)}"))
            try:
                trial._fill(config_text, overrides)
                _rename_new(trial.path, path)
            finally:
                shutil.rmtree(trial.path, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> "Trial":
        """The trial at `path`; ValueError where there is none."""
        path = Path(path).absolute()
        if missing := _what_is_missing(path):
            way_out = "give the folder of one trial: <out>/<name>/<trial>"
            raise ValueError(f"{path}: is no trial: {missing}; {way_out}")
        return cls(path)

    @property
    def config_path(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def log_path(self, rank: int) -> Path:
        """Where a rank's output goes."""
        return self.path / "log" / f"rank{rank}.txt"

    def read_config_text(self) -> str:
        """The resolved config as it was written."""
        return self.config_path.read_text(encoding="utf-8")

    def read_overrides(self) -> list[str]:
        """What the user typed."""
        lines = (self.path / "overrides.yaml").read_text(encoding="utf-8").splitlines()
        return [_unquoted(line.removeprefix("- ")) for line in lines if line.startswith("- ")]

    # state

    def status(self) -> Status:
        """What `status.json` says."""
        path = self.path / "status.json"
        record = records.read_json(path)
        if record is None:
            raise ValueError(f"{path}: is missing, so this is no trial any more; restore it")
        try:
            return Status.from_record(record)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}; restore it") from error

    def set_status(self, state: State, *, reason: str | None = None, error: str | None = None) -> None:
        """Change the state, now; only whoever holds the lock or knows the process to be dead may."""
        self._write_status(self.status().entering(state, reason=reason, error=error))

    def settled_status(self) -> Status:
        """The status, with a `running` that its dead process left behind replaced by how it ended.

        A request says how (`cancelled`, `timeout`). Without one it is `preempted`: a kill -9, a lost
        node and a preemption whose signal never arrived leave the same traces, and `preempted` is the
        state that a rerun continues from its newest checkpoint; a `failed` would need a retry and blame
        the trial. Who has better evidence (an exit code, the queue) may correct it. Where the directory
        cannot be written the answer is the same, only not stored.
        """
        status = self.status()
        if status.state != "running" or self._has_living_holder():
            return status
        try:
            with self.locked(wait_s=0.0) as lock:
                return self._settle(lock.broken)
        except TrialInUse:
            return self.status()
        except ValueError:
            return self._ended_unheard(self.status(), self.holder())

    def _settle(self, broken: Holder | None) -> Status:
        status = self.status()
        if status.state == "running":
            status = self._ended_unheard(status, broken)
            self._write_status(status)
            self.event("settled", state=status.state, reason=status.reason)
        return status

    def _ended_unheard(self, status: Status, holder: Holder | None) -> Status:
        if status.state != "running":
            return status
        request = self.request()
        state, reason = request.outcome if request else ("preempted", _DIED)
        status = status.entering(state, reason=reason)
        return replace(status, ended=to_utc(holder.heartbeat)) if holder else status

    def _write_status(self, status: Status) -> None:
        self.write_json("status.json", asdict(status))

    # lock

    @contextlib.contextmanager
    def locked(self, *, wait_s: float = 1.0) -> Generator[Lock]:
        """Hold the trial; TrialInUse if a living process keeps it for `wait_s`.

        The wait outlasts a reader that settles the state. A job that was requeued after its node died
        waits longer than `lock.STALE_AFTER_S`.
        """
        lock = Lock.acquire(self.path / "lock", wait_s=wait_s)
        try:
            if lock.broken:
                self.event("lock_broken", holder=asdict(lock.broken))
            yield lock
        finally:
            lock.release()

    def holder(self) -> Holder | None:
        """Who holds the lock, dead or alive."""
        return read_holder(self.path / "lock")

    def _has_living_holder(self) -> bool:
        holder = self.holder()
        return holder is not None and not holder.is_stale(time.time())

    # requests

    def request(self) -> Request | None:
        """Why somebody wants the trial to stop."""
        path = self.path / "request.json"
        record = records.read_json(path)
        if record is None:
            return None
        try:
            return Request(record.get("kind", ""), record.get("reason"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}; delete it") from error

    def write_request(self, kind: RequestKind, reason: str | None = None) -> None:
        """Say why the trial is to stop, before signalling its process."""
        self.write_json("request.json", asdict(Request(kind, reason)) | {"time": utc_now()})

    def clear_request(self) -> None:
        """Forget the request of an earlier attempt."""
        (self.path / "request.json").unlink(missing_ok=True)

    # records

    def append_lines(self, name: str, lines: Sequence[str]) -> None:
        """Append encoded records to a JSON-lines file, all or none."""
        records.append_lines(self.path / name, lines)

    def append_json(self, name: str, batch: Sequence[Record]) -> None:
        """Append records to a JSON-lines file, all or none; NaN and infinity become null."""
        self.append_lines(name, [records.to_json(record) for record in batch])

    def read_jsonl(self, name: str) -> list[Record]:
        """The records of a JSON-lines file, without the remains of a killed write."""
        return records.read_jsonl(self.path / name)

    def truncate_after(self, name: str, step: int) -> int:
        """Drop the records of `step` and later; returns how many went."""
        return records.drop_from_step(self.path / name, step)

    def sync(self, *names: str) -> None:
        """Make what was appended to these files outlast a power cut, as a checkpoint does."""
        for name in names:
            records.sync(self.path / name)

    def event(self, kind: str, **details: object) -> None:
        """Note in `events.jsonl` that something happened, now."""
        self.append_json("events.jsonl", [{"time": utc_now(), "kind": kind, **details}])

    def write_json(self, name: str, data: Record) -> None:
        """Replace a JSON file, whole or not at all; NaN and infinity become null."""
        records.write_json(self.path / name, data)

    def read_json(self, name: str) -> Record | None:
        """The object in a JSON file; None where there is no such file."""
        return records.read_json(self.path / name)

    def _fill(self, config_text: str, overrides: Sequence[str]) -> None:
        for folder in (self.path, self.path / "log", self.checkpoints):
            folder.mkdir()
        records.write_text(self.config_path, config_text)
        records.write_text(self.path / "overrides.yaml", _yaml_list(overrides))
        records.write_text(self.path / "events.jsonl", "")
        self._write_status(Status("pending", created=utc_now()))


def trials_in(folder: Path | str) -> list[Trial]:
    """The trials directly inside a folder, by name."""
    folder = Path(folder).absolute()
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [Trial(path) for path in paths if not path.name.startswith(".") and not _what_is_missing(path)]


def _what_is_missing(path: Path) -> str | None:
    if not path.exists():
        return "there is no such folder"
    if not path.is_dir():
        return "it is a file"
    names = (name for name in ("config.yaml", "status.json") if not (path / name).is_file())
    return next((f"it has no {name}" for name in names), None)


def _rename_new(source: Path, path: Path) -> None:
    try:
        source.rename(path)
    except OSError as error:
        if path.exists() or path.is_symlink():
            way_out = "resume it with resume=DIR, or choose another name=NAME"
            raise TrialExists(f"{path}: is already there; {way_out}") from error
        raise
    records.sync_directory(path.parent)


def _yaml_list(items: Sequence[str]) -> str:
    """A YAML list of quoted strings, in the part of YAML that is JSON."""
    return "".join(f"- {_quoted(item)}\n" for item in items) or "[]\n"


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in quoted)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip()  # typed by hand
