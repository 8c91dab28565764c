"""A trial's identity is the hash of what can change its numbers, and of nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampx.config.experiment import ExperimentConfig
from ampx.config.identity import identity, trial_name
from ampx.config.load import dump_config, load_config
from ampx.names import safe_name

Build = Callable[..., ExperimentConfig]

SAME = [
    "name=other",
    "out=elsewhere",
    "tags=[a]",
    "device=auto",
    "train.log_every=7",
    "train.checkpoint_every=7",
    "debug.profile=true",
    "tracker.observers=[json.JSONDecoder]",
    "scaler=static",  # inactive under bf16, whatever its policy
    "scaler.growth_interval=300",
    "scaler=none",
]
OTHER = [
    "seed=1",
    "deterministic=true",
    "dtype=fp32",
    "model.width=16",
    "data.batch_size=8",
    "optimizer.lr=2e-3",
    "schedule=none",
    "train.max_steps=9",
    "train.clip_norm=null",
    "train.limit_batches=3",
    "debug.overfit_batches=2",
    "scaler.abort_after_skips=3",  # can end the run, scaled or not
    "scaler.enabled=true",
]


@pytest.mark.parametrize("override", SAME)
def test_what_cannot_change_numbers_does_not_change_the_identity(override: str, experiment: Build) -> None:
    assert identity(experiment(override), "cpu", 1) == identity(experiment(), "cpu", 1)


@pytest.mark.parametrize("override", OTHER)
def test_what_can_change_numbers_changes_the_identity(override: str, experiment: Build) -> None:
    """Seen to fail for all with a constant instead of `_hashed(config)`."""
    assert identity(experiment(override), "cpu", 1) != identity(experiment(), "cpu", 1)


def test_device_kind_and_world_size_change_it(experiment: Build) -> None:
    config = experiment()
    assert len({identity(config, "cpu", 1), identity(config, "cuda", 1), identity(config, "cpu", 2)}) == 3


def test_settings_of_an_active_scaler_change_it(experiment: Build) -> None:
    intervals = [experiment("dtype=fp16", f"scaler.growth_interval={n}") for n in (100, 200)]
    assert len({identity(config, "cpu", 1) for config in intervals}) == 2


def test_arguments_of_a_users_own_class_change_it(experiment: Build) -> None:
    custom = ["model=custom", "model._target_=my_pkg.Net"]
    configs = [
        experiment(*custom),
        experiment(*custom, "+model.width=1"),
        experiment(*custom, "+model.width=2"),
    ]
    assert len({identity(config, "cpu", 1) for config in configs}) == 3


def test_a_fork_is_another_trial_than_the_same_settings_from_the_start(experiment: Build) -> None:
    config = experiment()
    fork = config.model_copy(update={"resume": "/trials/a"})
    assert identity(fork, "cpu", 1) != identity(config, "cpu", 1)


def test_the_worker_finds_the_same_identity_in_the_file(experiment: Build, tmp_path: Path) -> None:
    config = experiment("scaler.enabled=true", "train.clip_norm=1", "optimizer.lr=1e-5")
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert identity(load_config(tmp_path / "config.yaml"), "cpu", 1) == identity(config, "cpu", 1)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "resnet_small-digits-bf16"),
        (["dtype=fp16_pure", "model=mlp"], "mlp-digits-fp16_pure"),
        (["dtype=tf32", "device=cuda"], "resnet_small-digits-tf32"),
        (["dtype=bf16", "dtype.compute_dtype=float32"], "resnet_small-digits-fp32"),
        (
            ["model=torchvision", "model.name=vit_b_16", "data=synthetic_images"],
            "vit_b_16-synthetic_images-bf16",
        ),
        (["model=custom", "model._target_=my_pkg.sub.Net"], "Net-digits-bf16"),
    ],
)
def test_the_name_says_what_is_trained_on_what(overrides: list[str], name: str, experiment: Build) -> None:
    digest = "3f2a9c11" + "0" * 56
    assert trial_name(experiment(*overrides), digest) == f"{name}-3f2a9c11"


def test_the_name_is_one_component_of_a_path_however_long(experiment: Build) -> None:
    name = trial_name(experiment("model=custom", f"model._target_=my_pkg.{'N' * 300}"), "3f2a9c11" * 8)
    assert safe_name(name) == name
    assert "=" not in name
    assert len(name.encode()) <= 200
