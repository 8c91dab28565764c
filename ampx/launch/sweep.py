"""`sweep.json`: which trials a named directory holds, and what was typed for each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ampx import records
from ampx.config.load import Request
from ampx.status import utc_now
from ampx.trial import Trial

MANIFEST = "sweep.json"


def record_sweep(root: Path, trials: Sequence[Trial], requests: Sequence[Request]) -> None:
    """Add these trials to the manifest in `root`; a trial that stands there already keeps its entry."""
    manifest = read_sweep(root) or {"name": root.name, "created": utc_now(), "trials": {}}
    added = {
        trial.path.name: list(request.overrides) for trial, request in zip(trials, requests, strict=True)
    }
    records.write_json(root / MANIFEST, {**manifest, "trials": {**added, **manifest["trials"]}})


def read_sweep(root: Path) -> dict[str, Any] | None:
    """The manifest in `root`, None where there is none."""
    return records.read_json(root / MANIFEST)
