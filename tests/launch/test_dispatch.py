"""From a typed command to directories and an exit code: names, reruns, resumes, forks, and bad places."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ampx.run import main
from ampx.trial import Trial

QUICK = ["model=mlp", "train.limit_batches=3", "train.max_epochs=1", "data.batch_size=16"]


def trials(out: Path) -> list[Trial]:
    return [Trial.open(path.parent) for path in sorted(out.glob("*/*/config.yaml"))]


def only(out: Path) -> Trial:
    (trial,) = trials(out)
    return trial


def result(trial: Trial) -> dict[str, Any]:
    return json.loads((trial.path / "result.json").read_text())


def test_an_unnamed_run_gets_a_fresh_directory_every_time(tmp_path: Path) -> None:
    for _ in range(2):
        assert main([f"out={tmp_path}", *QUICK]) == 0
    assert len({trial.path.parent for trial in trials(tmp_path)}) == 2
    assert len({trial.path.name for trial in trials(tmp_path)}) == 1


def test_a_named_run_is_done_once_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"out={tmp_path}", "name=mine", *QUICK]) == 0
    written = (only(tmp_path).path / "result.json").stat().st_mtime_ns
    capsys.readouterr()
    assert main([f"out={tmp_path}", "name=mine", *QUICK]) == 0
    assert "already completed" in capsys.readouterr().out
    assert (only(tmp_path).path / "result.json").stat().st_mtime_ns == written
    manifest = json.loads((tmp_path / "mine" / "sweep.json").read_text())
    assert list(manifest["trials"]) == [only(tmp_path).path.name]


def test_a_rerun_says_when_the_code_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([f"out={tmp_path}", "name=mine", *QUICK])
    path = only(tmp_path).path / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "sources": {"ampx": "another"}}))
    assert main([f"out={tmp_path}", "name=mine", *QUICK]) == 0
    assert "the code of ampx changed since" in capsys.readouterr().out


def test_another_config_under_a_name_is_a_new_trial(tmp_path: Path) -> None:
    for seed in (0, 1):
        assert main([f"out={tmp_path}", "name=mine", f"seed={seed}", *QUICK]) == 0
    assert len(trials(tmp_path)) == 2


def test_settings_of_an_inactive_scaler_make_no_new_trial(tmp_path: Path) -> None:
    for interval in (100, 300):
        main([f"out={tmp_path}", "name=mine", "dtype=bf16", f"scaler.growth_interval={interval}", *QUICK])
    assert len(trials(tmp_path)) == 1


def test_resuming_a_completed_trial_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([f"out={tmp_path}", *QUICK])
    assert main([f"resume={only(tmp_path).path}"]) == 0
    assert "already completed" in capsys.readouterr().out


def test_a_fork_starts_from_the_state_and_leaves_the_original_alone(tmp_path: Path) -> None:
    out, forks = tmp_path / "out", tmp_path / "forks"
    main([f"out={out}", *QUICK, "train.max_epochs=1"])
    original = only(out)
    before = {path: path.read_bytes() for path in original.path.rglob("*") if path.is_file()}
    assert main([f"resume={original.path}", "train.max_epochs=3", f"out={forks}"]) == 0
    fork = only(forks)
    assert before == {path: path.read_bytes() for path in original.path.rglob("*") if path.is_file()}
    assert result(original)["steps"]["attempted"] == 3
    assert [record["step"] for record in fork.read_jsonl("steps.jsonl")] == [3, 4, 5, 6, 7, 8]
    assert str(original.path) in fork.read_config_text()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["optimizer.weight_decay=0"], ["optimizer.weight_decay=0.1"]),
        ([], ["train.ema_decay=0.9"]),
        (["train.ema_decay=0.9"], ["train.ema_decay=null"]),
        (["dtype=bf16_pure"], ["dtype.masters=float32"]),
        (["dtype=bf16_pure", "dtype.masters=float32"], ["dtype.masters=none", "optimizer.rounding=kahan"]),
        (["dtype=bf16_pure", "optimizer.rounding=kahan"], ["optimizer.rounding=stochastic"]),
        (["dtype=fp16"], ["scaler.enabled=false", "scaler.allow_unscaled=true"]),
        (["dtype=bf16"], ["scaler.enabled=true"]),
    ],
    ids=lambda overrides: " ".join(overrides) or "plain",
)
def test_a_fork_may_switch_parts_of_the_state_on_and_off(
    before: list[str], after: list[str], tmp_path: Path
) -> None:
    """Save optimizer state by index and the first of these moves moments to wrong parameters."""
    out, forks = tmp_path / "out", tmp_path / "forks"
    assert main([f"out={out}", *QUICK, *before]) == 0
    assert main([f"resume={only(out).path}", *after, "train.max_epochs=2", f"out={forks}"]) == 0
    assert result(only(forks))["steps"]["attempted"] == 6


def test_what_ended_otherwise_is_listed_and_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [f"out={tmp_path}", "name=mine", "data=synthetic_images", "model=torchvision",
              "model.name=inception_v3", "data.image_size=8", "train.max_steps=1"]  # fmt: skip
    assert main(wanted) == 1
    capsys.readouterr()
    assert main(wanted) == 1
    assert "failed earlier" in capsys.readouterr().out
    assert only(tmp_path).status().attempts == 1
    assert main([f"resume={only(tmp_path).path}"]) == 1
    assert only(tmp_path).status().attempts == 2


@pytest.mark.parametrize(
    ("typed", "attempted"),
    [
        (["train.max_steps=70"], 70),
        (["train.max_epochs=2"], 6),
        (["train.max_steps=70", "train.max_epochs=1"], 3),
    ],
)
def test_a_typed_limit_replaces_the_default_of_the_other(
    typed: list[str], attempted: int, tmp_path: Path
) -> None:
    """A fork by `train.max_steps=2000` would do nothing while max_epochs still ends the run."""
    assert main([f"out={tmp_path}", *QUICK[:2], *QUICK[3:], *typed]) == 0
    assert result(only(tmp_path))["steps"]["attempted"] == attempted


def test_requests_that_are_one_trial_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", f"out={tmp_path}", "dtype=bf16", "scaler.growth_interval=100,300", *QUICK]) == 0
    assert "2 requests are 1 distinct trials" in capsys.readouterr().out


def test_a_worker_that_ends_quietly_is_not_taken_for_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUGS 45: trust the exit code alone and a trial without a result is a success."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    code = main(["-m", f"out={tmp_path}", *QUICK[1:], "model=custom", "seed=1,2",
                 f"model._target_={Path(__file__).stem}.Vanishes"])  # fmt: skip
    assert code == 1
    assert {trial.settled_status().state for trial in trials(tmp_path)} == {"preempted"}


class Vanishes(torch.nn.Module):
    """Ends its process without a word; the parent only looks at its signature."""

    def __init__(self) -> None:
        super().__init__()
        os._exit(0)


def test_a_reader_that_leaves_does_not_end_the_trial(tmp_path: Path) -> None:
    """`ampx run | head -1`: raise on the broken pipe and the trial dies at its first line."""
    command = [sys.executable, "-m", "ampx.run", f"out={tmp_path}", *QUICK]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    run.stdout.readline()
    run.stdout.close()
    run.wait(timeout=60)
    assert only(tmp_path).status().state == "completed"


def test_a_missing_checkpoint_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"out={tmp_path}", "job=evaluate", "checkpoint=/no/such/trial", *QUICK]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_failed_trial_makes_exit_code_1(tmp_path: Path) -> None:
    code = main([f"out={tmp_path}", "data=synthetic_images", "model=torchvision", "model.name=inception_v3",
                 "data.image_size=8", "train.max_steps=1"])  # fmt: skip
    assert code == 1
    assert only(tmp_path).status().state == "failed"


def test_several_trials_run_each_in_a_process_and_the_good_ones_complete(tmp_path: Path) -> None:
    code = main(["-m", f"out={tmp_path}", "name=sweep", "optimizer.lr=0.001,0.002", *QUICK])
    assert code == 0
    assert {trial.status().state for trial in trials(tmp_path)} == {"completed"}
    assert len({trial.status().pid for trial in trials(tmp_path)} | {os.getpid()}) == 3


def test_an_output_that_cannot_be_written_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([f"out={tmp_path / 'file'}", *QUICK]) == 2
    error = capsys.readouterr().err
    assert "cannot be written" in error
    assert "out=DIR" in error
    assert "Traceback" not in error


def test_a_second_user_of_a_name_gets_one_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ampx.run", f"out={tmp_path}", "name=mine", "model=mlp"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(
        [*command, "train.max_epochs=100000"], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        while not list(tmp_path.glob("mine/*/steps.jsonl")):
            assert first.poll() is None
        second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    finally:
        first.terminate()
        first.wait(timeout=60)
    assert second.returncode == 2
    assert "in use by process" in second.stderr
    assert "Traceback" not in second.stderr


def test_cuda_where_there_is_none_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert main([f"out={tmp_path}", "device=cuda", *QUICK]) == 2
    assert "use device=auto" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
