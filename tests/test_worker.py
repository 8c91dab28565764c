"""One trial directory from start to end, and every way it can be cut short: in real processes."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampx.lock import Lock
from ampx.tasks.task import Phase
from ampx.track.record import StepRecord
from ampx.training.checkpoint import Checkpoints
from ampx.trial import Trial
from ampx.worker import Ended, is_out_of_memory, run_trial

QUICK = ("model=mlp", "train.log_every=1", "data.batch_size=16", "train.limit_batches=4")
Make = Callable[..., Trial]


def start(trial: Trial) -> subprocess.Popen[str]:
    """The trial's worker as a process of its own, which can import this file as `test_worker`."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ampx.worker", str(trial.path)]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def wait_for_step(trial: Trial, step: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if any(record["step"] >= step for record in trial.read_jsonl("steps.jsonl")):
            return
        time.sleep(0.05)
    raise TimeoutError


def test_a_trial_leaves_what_the_contract_promises(make_trial: Make) -> None:
    trial = make_trial(*QUICK, "dtype=fp16", "train.max_steps=6", "scaler.growth_interval=2")
    assert run_trial(trial) == Ended("completed", "max_steps")
    result, manifest = trial.read_json("result.json"), trial.read_json("manifest.json")
    assert result is not None
    assert manifest is not None
    assert result["status"] == "completed"
    assert result["settings"]["scaler.growth_interval"] == 2
    assert result["steps"] == {"planned": 6, "attempted": 6, "applied": 6, "skipped": {}}
    assert result["scale"] == {"first": 65536.0, "last": 262144.0, "min": 65536.0, "max": 262144.0}
    assert set(result["metrics"]["accuracy"]) == {"final", "best"}
    assert result["throughput"]["samples_per_s"] > 0
    assert result["memory"]["peak_rss_bytes"] > 0
    assert manifest["effective"]["compute_dtype"] == {"float16": 4}
    assert manifest["effective"]["scaler"]["is_active"] is True
    assert len(trial.read_jsonl("steps.jsonl")) == 6
    assert trial.read_jsonl("evals.jsonl")[-1]["step"] == 6
    assert (trial.path / "events.jsonl").exists()
    assert trial.status().attempts == 1


def test_a_completed_trial_is_not_run_again(make_trial: Make) -> None:
    trial = make_trial(*QUICK, "train.max_steps=2")
    run_trial(trial)
    before = trial.read_jsonl("steps.jsonl")
    assert run_trial(trial).state == "completed"
    assert trial.read_jsonl("steps.jsonl") == before
    assert trial.status().attempts == 1


def test_an_inactive_scaler_is_announced_in_the_output_and_the_manifest(
    make_trial: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = make_trial(*QUICK, "dtype=bf16", "scaler.growth_interval=300", "train.max_steps=2")
    run_trial(trial)
    assert "scaler=dynamic is inactive" in capsys.readouterr().out
    manifest = trial.read_json("manifest.json")
    assert manifest is not None
    assert manifest["effective"]["scaler"] == {
        "kind": "dynamic",
        "policy": None,
        "is_active": False,
        "scale": None,
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_saves_and_ends_as_preempted(number: signal.Signals, make_trial: Make) -> None:
    trial = make_trial(*QUICK, "train.max_epochs=100000")
    worker = start(trial)
    wait_for_step(trial, 3)
    worker.send_signal(number)
    output, _ = worker.communicate(timeout=60)
    assert worker.returncode == 75, output
    assert trial.status().state == "preempted"
    assert Checkpoints(trial.checkpoints).steps()[-1] == trial.read_jsonl("steps.jsonl")[-1]["step"] + 1


@pytest.mark.parametrize(
    ("kind", "state", "reason"),
    [("cancel", "cancelled", "why"), ("prune", "cancelled", "pruned"), ("timeout", "timeout", "why")],
)
def test_a_request_says_what_a_signal_meant(kind: Any, state: str, reason: str, make_trial: Make) -> None:
    trial = make_trial(*QUICK, "train.max_epochs=100000")
    worker = start(trial)
    wait_for_step(trial, 1)
    trial.write_request(kind, "why")
    worker.terminate()
    worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert (trial.status().state, trial.status().reason) == (state, reason)


def test_the_first_ctrl_c_saves_and_stops(make_trial: Make) -> None:
    trial = make_trial(*QUICK, "train.max_epochs=100000")
    worker = start(trial)
    wait_for_step(trial, 1)
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=60)
    assert (trial.status().state, trial.status().reason) == ("cancelled", "interrupted, saved")
    assert Checkpoints(trial.checkpoints).steps()


def test_the_second_ctrl_c_stops_at_once_and_says_so(make_trial: Make) -> None:
    trial = make_trial(*QUICK, "train.max_steps=5", f"tracker.observers=[{__name__}.Impatient]")
    assert run_trial(trial) == Ended("cancelled", "interrupted twice, not saved", is_interrupted=True)
    assert not Checkpoints(trial.checkpoints).steps()


class Impatient:
    """Presses Ctrl-C twice while a step is being told of."""

    def on_records(self, records: Sequence[StepRecord]) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.1)  # within a second it counts as one press


def test_a_worker_that_lost_its_lock_writes_nothing_more(make_trial: Make) -> None:
    """Go on and two processes write one trial; write the status and the new owner's is overwritten."""
    trial = make_trial(*QUICK, "train.max_steps=50", f"tracker.observers=[{__name__}.Usurper]")
    Usurper.trial = trial
    run_trial(trial)
    assert trial.status().state == "running", "the usurper's own"
    assert not (trial.path / "result.json").exists()
    assert len(trial.read_jsonl("steps.jsonl")) < 50


class Usurper:
    """Takes the lock away after the third step, as a process on another machine would."""

    trial: Trial | None = None

    def on_records(self, records: Sequence[StepRecord]) -> None:
        if Usurper.trial is not None and records[-1].step == 3:
            lock = Usurper.trial.path / "lock"
            lock.unlink()
            lock.write_text("{}")
            lost = [held for held in gc.get_objects() if isinstance(held, Lock) and held._path == lock]
            lost[0].is_lost = True  # what its heartbeat finds out within ten seconds


class Leaky:
    """An observer whose error quotes its secret, as the clients of some services do."""

    def __init__(self, key: str) -> None:
        self.key = key

    def on_records(self, records: Sequence[StepRecord]) -> None:
        raise ValueError(f"bad key {self.key}")


class LeakyNet(nn.Module):
    def __init__(self, key: str) -> None:
        super().__init__()
        raise RuntimeError(f"bad key {key}")


@pytest.mark.parametrize("where", ["observer", "model"])
def test_a_secret_in_an_error_reaches_no_file_and_no_output(
    where: str, make_trial: Make, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Write error texts as they come and the key stands in status.json and the log."""
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-value")
    key = r"key:\${oc.env:MY_API_KEY}"
    if where == "observer":
        trial = make_trial(
            *QUICK, "train.max_steps=2", f"tracker.observers=[{{_target_:{__name__}.Leaky,{key}}}]"
        )
    else:
        typed = r"+model.key='${oc.env:MY_API_KEY}'"
        trial = make_trial("model=custom", f"model._target_={__name__}.LeakyNet", typed)
    run_trial(trial)
    for path in trial.path.rglob("*"):
        assert not path.is_file() or b"s3cr3t-value" not in path.read_bytes(), path
    captured = capfd.readouterr()
    assert "s3cr3t-value" not in captured.out + captured.err
    assert any(b"bad key ${oc.env:MY_API_KEY}" in p.read_bytes() for p in trial.path.glob("*.json*"))


def test_a_trial_whose_checkpoints_are_all_damaged_begins_again_and_says_so(
    make_trial: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Leave the damaged files where they are and the next save deletes itself as the oldest."""
    trial = make_trial(*QUICK, "train.max_steps=8", f"tracker.observers=[{__name__}.StopsAtFive]")
    assert run_trial(trial).state == "preempted"
    for path in trial.checkpoints.glob("*.pt"):
        path.write_bytes(b"garbage")
    StopsAtFive.is_armed = False
    assert run_trial(trial).state == "completed"
    assert "begins again from step 0" in capsys.readouterr().out
    assert len(trial.read_jsonl("steps.jsonl")) == 8
    assert Checkpoints(trial.checkpoints).steps()[-1] == 8


class StopsAtFive:
    is_armed = True

    def on_records(self, records: Sequence[StepRecord]) -> None:
        if StopsAtFive.is_armed and records[-1].step == 5:
            os.kill(os.getpid(), signal.SIGTERM)


def test_data_without_a_finite_loss_never_count_as_completed(make_trial: Make) -> None:
    trial = make_trial("model=custom", f"model._target_={__name__}.Nan", "train.max_steps=3")
    assert run_trial(trial).state == "diverged"


class Detached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).detach()


def test_a_loss_that_reaches_no_parameter_names_them(make_trial: Make) -> None:
    """BUGS 8: let autograd speak first and nobody learns which parameters."""
    trial = make_trial("model=custom", f"model._target_={__name__}.Detached")
    ended = run_trial(trial)
    assert ended.state == "failed"
    assert "no parameter received a gradient (layer.weight, layer.bias)" in str(ended.reason)


def test_code_that_calls_exit_is_a_failure(make_trial: Make) -> None:
    trial = make_trial("model=custom", f"model._target_={__name__}.Quitter")
    assert run_trial(trial).state == "failed"
    assert "sys.exit(0)" in str(trial.status().reason)


class Quitter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sys.exit(0)


def test_a_trial_that_raises_keeps_the_account_up_to_there(make_trial: Make) -> None:
    """Flush only at the end of a healthy loop and the steps before the error are lost."""
    trial = make_trial("model=custom", f"model._target_={__name__}.DiesLater", "data.batch_size=16")
    assert run_trial(trial).state == "failed"
    result = trial.read_json("result.json")
    assert result is not None
    assert result["steps"]["attempted"] == len(trial.read_jsonl("steps.jsonl")) == 7


class DiesLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        if self.count > 7:
            raise RuntimeError("out of luck")
        return self.layer(x.flatten(1))


def test_skips_and_saves_are_events(make_trial: Make) -> None:
    trial = make_trial(*QUICK, "dtype=fp16", "scaler.init_scale=2**40", "train.max_steps=6")
    run_trial(trial)
    events = trial.read_jsonl("events.jsonl")
    skips = [event for event in events if event["kind"] == "skip"]
    assert [event["step"] for event in skips] == [
        record["step"] for record in trial.read_jsonl("steps.jsonl") if not record["applied"]
    ]
    assert {event["reason"] for event in skips} <= {"inf_grad", "nan_grad"}
    assert [event["step"] for event in events if event["kind"] == "save"][-1] == 6


def test_a_killed_trial_is_taken_up_again_and_loses_nothing_before_its_checkpoint(make_trial: Make) -> None:
    trial = make_trial(*QUICK, "train.max_steps=400", "train.max_epochs=null", "train.checkpoint_every=20")
    worker = start(trial)
    wait_for_step(trial, 50)
    worker.kill()
    worker.communicate(timeout=60)
    assert trial.status().state == "running"
    assert trial.settled_status().state == "preempted"
    assert run_trial(trial).state == "completed"
    steps = [record["step"] for record in trial.read_jsonl("steps.jsonl")]
    assert steps == list(range(400)), "no step is missing and none stands twice"
    assert trial.status().attempts == 2


class Nan(nn.Module):
    """A model whose output is never finite."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) * float("nan")


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_loss_that_is_never_finite_ends_as_diverged_within_one_flush(dtype: str, make_trial: Make) -> None:
    """BUGS 3 and 30, INVARIANTS 10, 12 and 13: without the cap it trains on for ever, the scale at 0."""
    trial = make_trial(
        f"dtype={dtype}", "model=custom", f"model._target_={__name__}.Nan", "scaler.abort_after_skips=20",
        "train.log_every=25", "data.batch_size=16",
    )  # fmt: skip
    ended = run_trial(trial)
    assert ended.state == "diverged"
    records = trial.read_jsonl("steps.jsonl")
    assert len(records) == 25
    assert {record["skip_reason"] for record in records} == {"nonfinite_loss"}
    assert {event["kind"] for event in trial.read_jsonl("events.jsonl")} >= {"skip_rate"}
    if dtype == "fp16":
        assert min(record["scale"] for record in records) == 1.0


def test_divergence_keeps_the_last_good_checkpoint(make_trial: Make) -> None:
    trial = make_trial(
        *QUICK, "task=custom", f"task._target_={__name__}.TurnsNan", "train.checkpoint_every=2",
        "scaler.abort_after_skips=5",
    )  # fmt: skip
    assert run_trial(trial).state == "diverged"
    checkpoints = Checkpoints(trial.checkpoints)
    newest = torch.load(checkpoints.path(checkpoints.steps()[-1]), weights_only=True)
    assert newest["ledger"]["main"]["consecutive_skips"] == 0
    assert all(tensor.isfinite().all() for tensor in newest["model"].values())


class TurnsNan:
    """Classification whose loss is NaN from the eighth batch on."""

    def __init__(self) -> None:
        self.count = 0

    def phases(self, model: nn.Module, batch: Any) -> Iterator[Phase]:
        self.count += 1
        factor = 1.0 if self.count < 8 else float("nan")
        x, y = batch
        yield Phase("main", lambda: model(x), lambda out: (nn.functional.cross_entropy(out, y) * factor, {}))

    def optimizers(self, model: nn.Module) -> dict[str, Any]:
        return {"main": model.parameters()}

    def evaluate(self, model: nn.Module, batches: Any) -> dict[str, float]:
        return {"count": float(sum(len(model(x)) for x, _ in batches))}


def test_data_with_nan_is_skipped_and_counted(make_trial: Make) -> None:
    trial = make_trial(
        "model=mlp", "data=custom", f"data._target_={__name__}.nan_data", "train.max_steps=4", "dtype=bf16"
    )
    assert run_trial(trial).state == "completed"
    result = trial.read_json("result.json")
    assert result is not None
    assert result["steps"]["skipped"] == {"nonfinite_loss": 2}


def nan_data() -> Any:
    """Two batches of which the second holds a NaN."""
    from ampx.spec import DataSpec

    x = torch.rand(2, 4, 1, 8, 8)
    x[1, 0, 0, 0, 0] = float("nan")
    labels = torch.zeros(4, dtype=torch.int64)
    return [(x[0], labels), (x[1], labels)], [(x[0], labels)], DataSpec((1, 8, 8), num_classes=10)


class Boom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        raise RuntimeError("no such weights")


def test_an_error_is_kept_with_its_traceback(make_trial: Make) -> None:
    trial = make_trial("model=custom", f"model._target_={__name__}.Boom")
    ended = run_trial(trial)
    assert ended.state == "failed"
    assert "no such weights" in str(trial.status().error)
    assert "Traceback" in str(trial.status().error)
    assert "no such weights" in trial.log_path(0).read_text()
    result = trial.read_json("result.json")
    assert result is not None
    assert result["status"] == "failed"


def test_running_out_of_memory_is_its_own_state(make_trial: Make) -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**50)
    assert is_out_of_memory(error.value)
    trial = make_trial("model=custom", f"model._target_={__name__}.Huge")
    assert run_trial(trial).state == "oom"


class Huge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2**50))


class Fragile:
    """An observer that dies at its first record."""

    def on_records(self, records: Sequence[StepRecord]) -> None:
        raise OSError("the mirror is gone")


def test_an_observer_may_die_and_the_trial_may_not(make_trial: Make) -> None:
    trial = make_trial(*QUICK, "train.max_steps=3", f"tracker.observers=[{__name__}.Fragile]")
    assert run_trial(trial).state == "completed"
    (event,) = [e for e in trial.read_jsonl("events.jsonl") if e["kind"] == "observer_failed"]
    assert "the mirror is gone" in event["error"]


def test_precision_that_silently_does_not_run_is_an_error(make_trial: Make) -> None:
    """BUGS 20: a model that switches autocast off trains float32 under the name of bfloat16."""
    trial = make_trial(*QUICK[1:], "dtype=bf16", "model=custom", f"model._target_={__name__}.Stubborn")
    ended = run_trial(trial)
    assert ended.state == "failed"
    assert "every layer computed in float32" in str(ended.reason)


class Stubborn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.layer(x.flatten(1))


def test_a_frozen_part_and_an_unused_part_train(make_trial: Make) -> None:
    trial = make_trial(*QUICK[1:], "train.max_steps=2", "model=custom", f"model._target_={__name__}.Partly")
    assert run_trial(trial).state == "completed"


class Partly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 16).requires_grad_(False)
        self.unused = nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(x.flatten(1)))


def test_early_stopping_ends_as_completed_and_says_so(make_trial: Make) -> None:
    trial = make_trial(
        *QUICK, "train.early_stop.patience=1", "train.early_stop.min_delta=10", "train.max_epochs=50"
    )
    ended = run_trial(trial)
    assert ended.state == "completed"
    assert "early_stop" in str(ended.reason)


def test_a_time_limit_ends_as_completed_and_says_so(make_trial: Make) -> None:
    trial = make_trial(*QUICK, "train.max_time_s=0.5", "train.max_epochs=100000")
    assert run_trial(trial) == Ended("completed", "max_time_s")


def test_evaluate_measures_what_training_reported(make_trial: Make) -> None:
    trained = make_trial(*QUICK, "dtype=bf16", "train.max_steps=8", "train.ema_decay=0.5")
    run_trial(trained)
    evaluated = make_trial(
        *QUICK,
        "dtype=bf16",
        "job=evaluate",
        f"checkpoint={trained.path}/checkpoints/step_00000008.pt",
        name="e",
    )
    assert run_trial(evaluated).state == "completed"
    results = [trial.read_json("result.json") for trial in (trained, evaluated)]
    finals = [
        {name: value["final"] for name, value in result["metrics"].items()} for result in results if result
    ]
    assert finals[0] == finals[1]


def test_a_checkpoint_of_another_model_is_refused_by_name(make_trial: Make) -> None:
    trained = make_trial(*QUICK, "train.max_steps=1")
    run_trial(trained)
    evaluated = make_trial("model=resnet_small", "job=evaluate", f"checkpoint={trained.path}", name="e")
    ended = run_trial(evaluated)
    assert ended.state == "failed"
    assert "does not fit this model" in str(ended.reason)


def test_a_profile_has_every_range_and_the_share_of_matmuls(make_trial: Make) -> None:
    trial = make_trial("model=mlp", "debug=profile", "train.max_steps=2", "dtype=fp16")
    run_trial(trial)
    table = (trial.path / "profile" / "table.txt").read_text()
    rows = [line.split()[0] for line in table.splitlines()[:7]]
    assert rows == ["data", "forward", "loss", "backward", "unscale", "step", "update"]
    assert "matmul and convolution" in table
    trace = json.loads((trial.path / "profile" / "trace.json").read_text())
    assert {"forward", "update"} <= {event.get("name") for event in trace["traceEvents"]}


def test_anomaly_mode_waits_for_a_scaler_and_then_names_the_operator(make_trial: Make) -> None:
    """BUGS 14: armed from the start it dies on the first overflow that the scaler would have caught."""
    scaled = make_trial(
        *QUICK, "debug=anomaly", "dtype=fp16", "scaler.init_scale=2**40", "train.max_steps=4", name="scaled"
    )
    assert run_trial(scaled).state == "completed"
    assert any(not record["applied"] for record in scaled.read_jsonl("steps.jsonl"))
    unscaled = make_trial(
        "debug=anomaly",
        "dtype=fp32",
        "model=custom",
        f"model._target_={__name__}.BadBackward",
        name="unscaled",
    )
    ended = run_trial(unscaled)
    assert ended.state == "failed"
    assert "SqrtBackward" in str(ended.reason)


class BadBackward(nn.Module):
    """Finite forward, NaN in the backward of sqrt."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x.flatten(1))
        return out + torch.sqrt(out * 0) * 0
