from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import TypeAdapter

from ampx.config.schedule import ScheduleSettings

GROUP = Path(__file__).parents[2] / "conf" / "schedule"


def load(name: str, **changes: Any) -> ScheduleSettings:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return TypeAdapter(ScheduleSettings).validate_python({**values, **changes})


@pytest.mark.parametrize("name", ["none", "constant", "cosine", "linear"])
def test_every_option_builds(name: str) -> None:
    assert load(name).kind == name


def test_custom_keeps_its_arguments() -> None:
    settings = load("custom", _target_="torch.optim.lr_scheduler.ExponentialLR", gamma=0.5)
    assert settings.arguments == {"gamma": 0.5}


def test_only_a_share_of_the_run_and_a_decay_need_its_length() -> None:
    assert not load("none").needs_plan
    assert not load("constant").needs_plan
    assert load("constant", warmup_fraction=0.1).needs_plan
    assert not load("constant", warmup_steps=5, warmup_fraction=0.1).needs_plan
    assert load("cosine").needs_plan
    assert load("linear", warmup_steps=5).needs_plan
