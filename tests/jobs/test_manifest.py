"""Requested against effective precision, for every option, and what the run says of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampx.config.experiment import ExperimentConfig
from ampx.numerics import isa
from ampx.numerics.isa import CpuIsa
from ampx.training.assemble import assemble
from ampx.trial import Trial
from ampx.worker import run_trial

Make = Callable[..., Trial]
QUICK = ("model=mlp", "data.batch_size=16", "train.max_steps=1", "train.limit_batches=1")


def manifest_of(trial: Trial) -> dict[str, Any]:
    ended = run_trial(trial)
    assert ended.state == "completed", ended.reason
    manifest = trial.read_json("manifest.json")
    assert manifest is not None
    return manifest


@pytest.mark.parametrize(
    ("dtype", "compute", "param", "grad", "optimizer", "output"),
    [
        ("fp32", "float32", "float32", "float32", "float32", "float32"),
        ("bf16", "bfloat16", "float32", "float32", "float32", "bfloat16"),
        ("fp16", "float16", "float32", "float32", "float32", "float16"),
        ("bf16_pure", "bfloat16", "bfloat16", "bfloat16", "bfloat16", "bfloat16"),
        ("fp16_pure", "float16", "float16", "float16", "float32", "float16"),
    ],
)
def test_every_option_runs_in_what_it_asks_for(
    dtype: str, compute: str, param: str, grad: str, optimizer: str, output: str, make_trial: Make
) -> None:
    """BUGS 20. Red when the effective side is copied from the config instead of seen in the first step."""
    manifest = manifest_of(make_trial(*QUICK, f"dtype={dtype}"))
    asked, ran = manifest["requested"], manifest["effective"]
    assert (asked["compute_dtype"], asked["param_dtype"]) == (compute, param)
    assert ran["compute_dtype"] == {compute: 4}
    assert ran["param_dtype"] == {param: 8}
    assert ran["grad_dtype"] == {grad: 8}
    assert set(ran["optimizer_dtype"]) == {optimizer}
    assert ran["output_dtype"] == [output]
    assert ran["scope"] == "forward_loss"
    assert ran["gate"] == "host"


def test_careful_rounding_keeps_its_moments_in_float32(make_trial: Make) -> None:
    manifest = manifest_of(make_trial(*QUICK, "dtype=bf16_pure", "optimizer.rounding=stochastic"))
    assert set(manifest["effective"]["optimizer_dtype"]) == {"float32"}


def test_an_island_stands_in_the_manifest(make_trial: Make) -> None:
    manifest = manifest_of(make_trial(*QUICK, "dtype=bf16", "dtype.islands=[head]"))
    assert manifest["effective"]["islands"] == {"head": "float32"}


def test_tf32_on_a_cpu_is_refused(experiment: Callable[..., ExperimentConfig]) -> None:
    with pytest.raises(ValueError, match=r"only CUDA devices multiply in TF32; use dtype=fp32"):
        experiment("dtype=tf32")


@pytest.mark.parametrize("scaler", ["dynamic", "conservative", "static", "hysteresis", "tolerance", "logmax"])
def test_the_scaler_that_was_configured_is_the_one_that_runs(
    scaler: str, experiment: Callable[..., ExperimentConfig], make_trial: Make
) -> None:
    """BUGS 19. Red when a setting does not reach the policy, or a scaler is dropped where it is rejected."""
    overrides = ("dtype=fp16", f"scaler={scaler}", "scaler.init_scale=1024", "scaler.max_scale=2**20")
    config = experiment(*QUICK, *overrides)
    policy = assemble(
        config, torch.device("cpu"), observers=[], on_overflow=lambda *_seen: None
    ).scaler.policy  # fmt: skip
    settings = config.scaler.model_dump()
    shared = {name: value for name, value in settings.items() if hasattr(policy, name)}
    assert {name: getattr(policy, name) for name in shared} == shared
    assert set(settings) - set(shared) == {
        "kind",
        "enabled",
        "init_scale",
        "abort_after_skips",
        "allow_unscaled",
    }
    trial = make_trial(*QUICK, *overrides)
    manifest = manifest_of(trial)
    assert manifest["requested"]["scaler"] == config.scaler.model_dump(mode="json")
    assert manifest["effective"]["scaler"]["is_active"] is True
    assert manifest["effective"]["scaler"]["kind"] == scaler
    assert trial.read_jsonl("steps.jsonl")[0]["scale"] == 1024.0


def test_no_scaler_is_no_scaler(make_trial: Make) -> None:
    trial = make_trial(*QUICK, "dtype=fp16", "scaler=none", "scaler.allow_unscaled=true")
    assert manifest_of(trial)["effective"]["scaler"] == {
        "kind": "none",
        "policy": None,
        "is_active": False,
        "scale": None,
    }
    assert trial.read_jsonl("steps.jsonl")[0]["scale"] is None


def test_an_inactive_scaler_is_noted_and_a_forced_one_is_not(make_trial: Make) -> None:
    """Red when the note follows the dtype alone."""
    notes = manifest_of(make_trial(*QUICK, "dtype=fp32", name="auto"))["notes"]
    assert [note for note in notes if note.startswith("scaler=dynamic is inactive")]
    forced = manifest_of(make_trial(*QUICK, "dtype=fp32", "scaler.enabled=true", name="forced"))
    assert forced["notes"] == []
    assert forced["effective"]["scaler"]["is_active"] is True


@pytest.fixture
def old_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without arithmetic in bfloat16 and float16: its probe alone is replaced."""
    monkeypatch.setattr(isa, "probe_cpu", lambda: CpuIsa("an old CPU", (), False, False))


@pytest.mark.usefixtures("old_cpu")
@pytest.mark.parametrize("dtype", ["bf16", "bf16_pure", "fp16"])
def test_a_run_that_will_be_slower_says_so_before_and_in_the_manifest(
    dtype: str, make_trial: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """BUGS 23. Red when the probe's answer is only written, or only printed."""
    manifest = manifest_of(make_trial(*QUICK, f"dtype={dtype}"))
    printed = capsys.readouterr().out
    (note,) = [note for note in manifest["notes"] if "slower" in note]
    assert "than with dtype=fp32" in note
    assert note in printed
    assert printed.index(note) < printed.index("evaluation")


@pytest.mark.usefixtures("old_cpu")
def test_float32_is_never_called_slow(make_trial: Make) -> None:
    assert not [n for n in manifest_of(make_trial(*QUICK, "dtype=fp32"))["notes"] if "slower" in n]


def test_raw_low_precision_outputs_outside_autocast_are_flagged(make_trial: Make) -> None:
    """INVARIANTS 17."""
    notes = manifest_of(make_trial(*QUICK, "dtype=fp16", "dtype.scope=forward_raw"))["notes"]
    assert [note for note in notes if note.startswith("dtype.scope=forward_raw") and "forward_loss" in note]


def test_a_resumed_trial_runs_on_as_many_threads_as_it_began_with(make_trial: Make) -> None:
    """Sums depend on how they are split. Red when the number is recorded and never read."""
    trial = make_trial(*QUICK)
    found = torch.get_num_threads()
    trial.write_json("manifest.json", {"environment": {"num_threads": found + 1}})
    try:
        assert manifest_of(trial)["environment"]["num_threads"] == found + 1
        assert torch.get_num_threads() == found + 1
    finally:
        torch.set_num_threads(found)
    (event,) = [event for event in trial.read_jsonl("events.jsonl") if event["kind"] == "threads"]
    assert (event["recorded"], event["found"]) == (found + 1, found)


def test_the_environment_and_the_sources_are_recorded(make_trial: Make) -> None:
    manifest = manifest_of(make_trial(*QUICK, "seed=5"))
    environment = manifest["environment"]
    assert environment["torch"] == torch.__version__
    assert environment["device"] == "cpu"
    assert set(environment["cpu"]) >= {"name", "features", "runs_float16", "runs_bfloat16"}
    assert set(manifest["sources"]) == {"ampx"}
    assert (manifest["seed"], manifest["world_size"]) == (5, 1)
