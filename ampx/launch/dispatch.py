"""From validated requests to trials that have run: directories, names, what is skipped, exit codes."""

import contextlib
import datetime
import secrets
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

from ampx import records
from ampx.config.identity import identity, trial_name
from ampx.config.load import Request, dump_config
from ampx.device import find_device
from ampx.fingerprint import fingerprints
from ampx.launch.sweep import record_sweep
from ampx.lock import Lock, TrialInUse
from ampx.trial import Trial
from ampx.worker import REQUEUE, run_trial

INTERRUPTED, STOPPED = 130, 143  # as a shell counts them


def launch(requests: Sequence[Request]) -> int:
    """Run every request's trial, one after the other; returns the exit code of `ampx run`."""
    first = requests[0]
    if first.resume is not None and not first.is_fork:
        return _run([_continued(first)], is_resumed=True)
    for request in requests:
        _check_checkpoint(request)
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


def _check_checkpoint(request: Request) -> None:
    """What `job=evaluate` measures must be there before a trial is made for it."""
    path = request.config.checkpoint
    if path is not None and not (Path(path).is_file() or list(Path(path).glob("checkpoints/*.pt"))):
        raise ValueError(
            f"checkpoint={path}: holds no checkpoint; name a trial that has trained, or a .pt file"
        )


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
    distinct = list(dict.fromkeys(trials))
    if len(distinct) < len(trials):
        print(
            f"{len(trials)} requests are {len(distinct)} distinct trials: "
            "they differ in what changes no numbers, such as the settings of an inactive scaler"
        )
    for index, trial in enumerate(distinct, start=1):
        if len(distinct) > 1:
            print(f"[{index}/{len(distinct)}] {' '.join(trial.read_overrides())}", flush=True)
        codes.append(_run_one(trial, is_alone=len(distinct) == 1, is_resumed=is_resumed))
        if codes[-1] == INTERRUPTED:
            return INTERRUPTED
        if codes[-1] == STOPPED:
            return 1
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
    with _passing_on(worker) as stop:
        try:
            code = worker.wait()
        except KeyboardInterrupt:  # the terminal has signalled the worker too: it saves and ends
            worker.wait()
            return INTERRUPTED
    if stop:
        return STOPPED
    state = trial.settled_status().state
    if state in ("pending", "preempted") and code not in (0, REQUEUE):
        _note_failure(trial, f"the worker ended with exit code {code} before it could say why")
    return 0 if state == "completed" else code or 1


@contextlib.contextmanager
def _passing_on(worker: "subprocess.Popen[bytes]") -> Generator[list[int]]:
    """Hand SIGTERM and SIGUSR2 on to the worker, which saves and ends; the list holds what came."""
    received: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        received.append(number)
        worker.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _note_failure(trial: Trial, reason: str) -> None:
    """Correct what a dead worker left, unless another process has the trial."""
    try:
        with trial.locked(wait_s=0.0):
            trial.set_status("failed", reason=reason)
    except TrialInUse as error:
        print(error, file=sys.stderr)
