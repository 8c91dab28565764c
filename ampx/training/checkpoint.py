"""Checkpoints of a trial: written whole or not at all, the newest two and the best kept.

A checkpoint holds tensors and plain Python types only, so `torch.load(weights_only=True)` reads it.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from ampx import records

KEEP_NEWEST = 2
_STEP = re.compile(r"step_(\d+)\.pt")


class Checkpoints:
    """The folder `checkpoints/` of one trial: `step_<n>.pt`, and `best.pt` with `best.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """Attempted steps that have a checkpoint, oldest first."""
        names = (_STEP.fullmatch(path.name) for path in self.folder.glob("step_*.pt"))
        return sorted(int(name[1]) for name in names if name)

    def path(self, step: int) -> Path:
        """Where the checkpoint after `step` attempts lies."""
        return self.folder / f"step_{step:08d}.pt"

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Write the checkpoint after `step` attempts, then drop the older ones."""
        path = self.path(step)
        _write_whole(path, lambda file: torch.save(state, file))
        for old in self.steps()[:-KEEP_NEWEST]:
            self.path(old).unlink(missing_ok=True)
        return path

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Keep the checkpoint after `step` attempts as the best; it costs no second copy on disk."""
        best = self.folder / "best.pt"
        temporary = self.folder / f".best.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        _link_or_copy(self.path(step), temporary)
        temporary.replace(best)
        text = json.dumps({"step": step, "metric": metric, "value": value})
        records.write_text(best.with_suffix(".json"), text)

    def load_newest(self, on_unreadable: Callable[[Path, str], None]) -> dict[str, Any] | None:
        """The newest checkpoint that can be read whole, else the best; None when there is none."""
        for path in [*map(self.path, reversed(self.steps())), self.folder / "best.pt"]:
            if path.exists():
                try:
                    return load_checkpoint(path)
                except ValueError as error:
                    on_unreadable(path, str(error))
        return None

    def set_aside(self, path: Path) -> None:
        """Keep an unreadable file out of the way of the checkpoints to come."""
        path.replace(path.with_name(f"{path.name}.unreadable"))


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that `path` means: a file itself; of a trial directory the best, else the newest."""
    if path.is_file():
        return path
    checkpoints = Checkpoints(path / "checkpoints")
    best = checkpoints.folder / "best.pt"
    if best.is_file():
        return best
    if not (steps := checkpoints.steps()):
        raise ValueError(
            f"checkpoint={path}: holds no checkpoint; name a trial directory or a step_*.pt in one"
        )
    return checkpoints.path(steps[-1])


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read one checkpoint onto the CPU; ValueError when it is truncated or holds more than plain data."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises half a dozen types for a truncated file
        raise ValueError(
            f"checkpoint {path} cannot be read ({error}); use another checkpoint of the trial"
        ) from error
    if not isinstance(state, dict) or "model" not in state:
        raise ValueError(
            f"checkpoint {path} was not written by ampx; name a trial directory or a step_*.pt in one"
        )
    return state


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # some network file systems have no hard links
        shutil.copyfile(source, target)


def _write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with records.writing(path):
        try:
            with temporary.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except RuntimeError as error:  # torch's zip writer fails once more while it closes
            reason = error.__context__
            raise (reason if isinstance(reason, OSError) else OSError(str(error))) from error
        finally:
            temporary.unlink(missing_ok=True)
