"""The groups as they come: every option composes, validates, and is written down again exactly."""

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ampx.config.experiment import ExperimentConfig, scaler_is_active
from ampx.config.load import dump_config, load_config
from ampx.run import conf_dir

GROUPS = sorted(path.name for path in conf_dir().iterdir() if path.is_dir() and path.name != "hydra")
OPTIONS = [f"{group}={path.stem}" for group in GROUPS for path in sorted((conf_dir() / group).glob("*.yaml"))]
TEXT = ["model=gpt", "data=text", "task=language_modeling"]
WITH = {  # what an option cannot be without
    "model=gpt": TEXT,
    "model=lstm": TEXT,
    "data=text": TEXT,
    "task=language_modeling": TEXT,
    "data=imagefolder": ["data.root=photos"],
    "scaler=none": ["dtype=bf16"],
    "job=evaluate": ["checkpoint=somewhere"],
    "dtype=tf32": ["device=cuda"],
    **{f"{group}=custom": [f"{group}._target_=my_pkg.Own"] for group in GROUPS},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_composes_validates_and_is_read_back_equal(
    option: str, experiment: Callable[..., ExperimentConfig], tmp_path: Path
) -> None:
    config = experiment(*WITH.get(option, []), option)
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config
    assert load_config(path).model_dump() == config.model_dump()  # == of pydantic would pass 1 for 1.0


def test_every_group_has_its_off_option() -> None:
    has_none = {group for group in GROUPS if (conf_dir() / group / "none.yaml").exists()}
    assert {"distribution", "compile", "quantize", "observe", "tracker", "debug", "experiment"} <= has_none
    assert {"scaler", "schedule"} <= has_none
    assert (conf_dir() / "launcher" / "local.yaml").exists()


def test_config_yaml_and_the_config_name_the_same_settings_in_the_same_order() -> None:
    root = OmegaConf.load(conf_dir() / "config.yaml")
    defaults = [str(next(iter(entry))) for entry in root.pop("defaults") if entry != "_self_"]
    groups = [group for group in defaults if "/" not in group and group != "experiment"]
    keys = [key for key in root if key != "hydra"]
    assert [*keys, *groups] == list(ExperimentConfig.model_fields)
    assert list(root.train) == list(ExperimentConfig.model_fields["train"].annotation.model_fields)


def test_the_config_is_frozen(experiment: Callable[..., ExperimentConfig]) -> None:
    config = experiment()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
    with pytest.raises(ValueError, match="frozen"):
        config.train.max_steps = 3


def test_presets_come_after_the_groups_they_change_and_before_what_is_typed(
    experiment: Callable[..., ExperimentConfig],
) -> None:
    preset = experiment("experiment=fp16_hysteresis", "debug=one_batch", "scaler.growth_interval=7")
    assert (preset.dtype.name, preset.scaler.kind) == ("fp16", "hysteresis")
    assert preset.scaler.model_dump()["growth_interval"] == 7
    assert (preset.train.max_steps, preset.train.limit_batches) == (1, 1)
    assert experiment("experiment=lstm_text").model.kind == "lstm"
    assert experiment("debug=overfit").debug.overfit_batches == 3


def test_paths_become_absolute_where_the_user_is(
    experiment: Callable[..., ExperimentConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMPX_OUT", "results here")
    config = experiment("job=evaluate", "checkpoint=a/trial")
    assert config.out == str(tmp_path / "results here")
    assert config.checkpoint == str(tmp_path / "a" / "trial")


@pytest.mark.parametrize(
    ("typed", "value"),
    [("2**16", 65536), ("1e-3", 0.001), ("65536", 65536), ("3*4", 12), ("1e3", 1000), ("+5", 5)],
)
def test_numbers_may_be_typed_as_arithmetic(
    typed: str, value: float, experiment: Callable[..., ExperimentConfig]
) -> None:
    setting = "scaler.growth_interval" if value >= 1 else "train.clip_norm"
    config = experiment(f"{setting}={typed}").model_dump()
    section, name = setting.split(".")
    assert config[section][name] == value
    assert type(config[section][name]) is (int if name == "growth_interval" else float)


def test_names_and_tags_may_look_like_numbers(experiment: Callable[..., ExperimentConfig]) -> None:
    config = experiment("name=2024", "tags=[1,b]")
    assert (config.name, config.tags) == ("2024", ("1", "b"))


@pytest.mark.parametrize(
    ("overrides", "is_active"),
    [
        (["dtype=bf16"], False),
        (["dtype=fp32"], False),
        (["dtype=fp16"], True),
        (["dtype=fp16_pure"], True),
        (["dtype=bf16", "dtype.islands=['Linear:float16']"], True),
        (["dtype=bf16", "dtype.islands=[Linear]"], False),
        (["dtype=bf16", "scaler.enabled=true"], True),
        (["dtype=fp16", "scaler.enabled=false", "scaler.allow_unscaled=true"], False),
        (["dtype=fp16", "scaler=none", "scaler.allow_unscaled=true"], False),
    ],
)
def test_the_scaler_is_active_where_float16_is_or_where_it_is_forced(
    overrides: list[str], is_active: bool, experiment: Callable[..., ExperimentConfig]
) -> None:
    """INVARIANTS 13. Red when only the compute dtype is looked at."""
    assert scaler_is_active(experiment(*overrides)) is is_active
