"""The states of a trial, which may follow which, and the requests that end one from outside."""

import os
import socket
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

State = Literal[
    "pending", "running", "completed", "failed", "oom", "timeout", "preempted", "diverged", "cancelled"
]
RequestKind = Literal["cancel", "prune", "timeout"]

STATES: tuple[State, ...] = get_args(State)
REQUEST_KINDS: tuple[RequestKind, ...] = get_args(RequestKind)

_RUNNING: set[State] = {"running"}
_STARTS: set[State] = {"pending", "running"}
_ENDS: set[State] = set(STATES) - _STARTS
_ENDS_OF_THE_UNHEARD: set[State] = {"failed", "oom", "timeout", "preempted", "cancelled"}
_MAY_FOLLOW: dict[State, set[State]] = {
    "pending": _RUNNING | _ENDS_OF_THE_UNHEARD,
    "running": _RUNNING | _ENDS,  # running again: taken over from a dead process
    "completed": {"pending"},  # rerun on purpose, its code changed
    "preempted": _STARTS | _ENDS_OF_THE_UNHEARD,  # said for want of evidence, which may come later
}


@dataclass(frozen=True, slots=True)
class Status:
    """What `status.json` holds. Times are UTC in ISO 8601; `attempts` counts starts."""

    state: State
    created: str
    attempts: int = 0
    started: str | None = None
    ended: str | None = None
    reason: str | None = None
    error: str | None = None
    host: str | None = None
    pid: int | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state={self.state!r}: a trial is one of {', '.join(STATES)}")

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Status":
        """The status in a `status.json`, whatever else a later version wrote there."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})

    @property
    def is_ended(self) -> bool:
        """Neither pending nor running."""
        return self.state in _ENDS

    def entering(self, state: State, *, reason: str | None = None, error: str | None = None) -> "Status":
        """The status after a change to `state`, now, in this process."""
        allowed = _MAY_FOLLOW.get(self.state, _STARTS)
        assert state in allowed, f"{state} may not follow {self.state}"
        after = replace(self, state=state, reason=reason, error=error)
        if state == "pending":
            return replace(after, started=None, ended=None, host=None, pid=None)
        if state == "running":
            after = replace(after, attempts=self.attempts + 1, started=utc_now(), ended=None)
            return replace(after, host=socket.gethostname(), pid=os.getpid())
        return replace(after, ended=utc_now())


@dataclass(frozen=True, slots=True)
class Request:
    """Why somebody stops a trial: written by the stopper before it signals."""

    kind: RequestKind
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in REQUEST_KINDS:
            raise ValueError(f"kind={self.kind!r}: a request is one of {', '.join(REQUEST_KINDS)}")

    @property
    def outcome(self) -> tuple[State, str | None]:
        """The state and the reason in which the trial ends that obeys it."""
        if self.kind == "prune":
            return "cancelled", "pruned"  # exactly this word: a sweep counts pruned trials as good
        return ("timeout" if self.kind == "timeout" else "cancelled"), self.reason


def utc_now() -> str:
    """The time as every file of a trial writes it, such as 2031-05-04T03:02:01.000Z."""
    return to_utc(datetime.now(UTC).timestamp())


def to_utc(seconds: float) -> str:
    """Seconds since 1970 as `utc_now` writes them."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
