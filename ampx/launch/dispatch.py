"""From validated requests to trials that have run: directories, names, what is skipped, exit codes."""

import datetime
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ampx import records
from ampx.config.identity import identity, trial_name
from ampx.config.load import Request, dump_config
from ampx.device import find_device
from ampx.fingerprint import fingerprints
from ampx.launch.sweep import record_sweep
from ampx.lock import Lock
from ampx.trial import Trial
from ampx.worker import run_trial

INTERRUPTED = 130


def launch(requests: Sequence[Request]) -> int:
    """Run every request's trial, one after the other; returns the exit code of `ampx run`."""
    first = requests[0]
    if first.resume is not None and not first.is_fork:
        return _run([_continued(first)], is_resumed=True)
    devices = [find_device(request.config.device).type for request in requests]  # before anything is written
    root = _root(first)
    with records.writing(root):
        root.mkdir(parents=True, exist_ok=True)
    lock = Lock.acquire(root / "lock")
    try:
        trials = [_prepared(*pair, root) for pair in zip(requests, devices, strict=True)]
        record_sweep(root, trials, requests)
        return _run(trials)
    finally:
        lock.release()


def _root(request: Request) -> Path:
    """The sweep's directory: the name's own, or a fresh one."""
    fresh = f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}-{secrets.token_hex(3)}"
    return Path(request.config.out) / (request.config.name or fresh)


def _prepared(request: Request, device: str, root: Path) -> Trial:
    """The trial of a request on a kind of device, made unless it is already there."""
    config = request.config
    path = root / trial_name(config, identity(config, device, config.distribution.num_processes))
    if path.exists():
        return Trial.open(path)
    return Trial.create(path, config_text=dump_config(config), overrides=request.overrides)


def _continued(request: Request) -> Trial:
    """The trial that `resume=` names, its launcher, tracker and observe replaced where they were typed."""
    assert request.resume is not None
    trial = Trial.open(request.resume)
    text = dump_config(request.config)
    with trial.locked():
        if trial.status().state != "completed" and text != trial.read_config_text():
            records.write_text(trial.config_path, text)
    return trial


def _run(trials: Sequence[Trial], *, is_resumed: bool = False) -> int:
    codes: list[int] = []
    for trial in dict.fromkeys(trials):  # identical requests are one trial
        codes.append(_run_one(trial, is_alone=len(trials) == 1, is_resumed=is_resumed))
        if codes[-1] == INTERRUPTED:
            return INTERRUPTED
    return 0 if not any(codes) else 1


def _run_one(trial: Trial, *, is_alone: bool, is_resumed: bool) -> int:
    status = trial.settled_status()
    if status.state == "completed":
        print(f"{_completed(trial)}: {trial.path}")
        return 0
    if status.is_ended and status.state != "preempted" and not is_resumed:
        print(f"{status.state} earlier ({status.reason}): continue it with resume={trial.path}")
        return 1
    if is_alone:
        ended = run_trial(trial)
        return INTERRUPTED if ended.is_interrupted else ended.exit_code
    return _run_in_process_of_its_own(trial)


def _completed(trial: Trial) -> str:
    manifest = trial.read_json("manifest.json") or {}
    sources = manifest.get("sources", {})
    changed = [name for name, digest in fingerprints(sources).items() if sources.get(name) != digest]
    if not changed:
        return "already completed"
    names = ", ".join(changed)
    return f"already completed, but the code of {names} changed since (use another name to run it again)"


def _run_in_process_of_its_own(trial: Trial) -> int:
    """A trial must not inherit the previous one's caches, dispatch tables or memory."""
    worker = subprocess.Popen([sys.executable, "-m", "ampx.worker", str(trial.path)])
    try:
        code = worker.wait()
    except KeyboardInterrupt:  # the terminal has signalled the worker too: it saves and ends
        worker.wait()
        return INTERRUPTED
    if trial.settled_status().state in ("pending", "running"):
        trial.set_status("failed", reason=f"the worker ended with exit code {code} before it could say why")
    return code
