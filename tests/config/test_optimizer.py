from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from ampx.build import import_target
from ampx.config.optimizer import BuiltinSettings, OptimizerSettings, settings_for

GROUP = Path(__file__).parents[2] / "conf" / "optimizer"
BUILTIN = ["adagrad", "adam", "adamw", "sgd"]


def load(name: str, **changes: Any) -> OptimizerSettings:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return TypeAdapter(OptimizerSettings).validate_python({**values, **changes})


def test_the_group_has_torchs_fused_optimizers_and_custom() -> None:
    assert sorted(path.stem for path in GROUP.glob("*.yaml")) == sorted([*BUILTIN, "custom"])


@pytest.mark.parametrize("name", BUILTIN)
def test_every_builtin_names_an_optimizer_that_takes_its_arguments(name: str) -> None:
    settings = load(name)
    assert isinstance(settings, BuiltinSettings)
    parameter = torch.nn.Parameter(torch.zeros(1))
    assert import_target(settings.implementation)([parameter], **settings.arguments).param_groups


def test_custom_passes_on_what_was_typed_and_nothing_of_ours() -> None:
    settings = load("custom", _target_="torch.optim.RMSprop", lr=0.1)
    assert settings.arguments == {"lr": 0.1}


def test_overrides_by_name_change_that_optimizer_alone() -> None:
    settings = load("adamw", by_name={"discriminator": {"lr": "2**-4", "rounding": "kahan"}})
    named = settings_for(settings, "discriminator")
    assert (named.lr, named.rounding, named.weight_decay) == (2**-4, "kahan", settings.weight_decay)
    assert settings_for(settings, "generator") == settings.model_copy(update={"by_name": {}})


def test_overrides_by_name_reach_a_custom_optimizers_arguments() -> None:
    settings = load("custom", _target_="torch.optim.RMSprop", lr=0.1, by_name={"critic": {"lr": 0.2}})
    assert settings_for(settings, "critic").arguments == {"lr": 0.2}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("adamw", {"by_name": {"critic": {"lr": -1}}}, r"for 'critic', lr=-1: must be greater than 0"),
        ("adamw", {"by_name": {"critic": {"lrs": 1}}}, r"for 'critic', lrs=1: .* did you mean lr"),
        ("sgd", {"momentum": 0, "nesterov": True}, r"set optimizer.momentum=0.9 or optimizer.nesterov=false"),
        ("adam", {"betas": [0.9, 1.0]}, r"less than 1"),
        ("adam", {"rounding": "up"}, r"'nearest', 'stochastic' or 'kahan'"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        load(name, **changes)
    assert caught.value.error_count() == 1


def test_a_wrong_common_setting_is_not_told_again_for_every_name() -> None:
    with pytest.raises(ValidationError) as caught:
        load("adamw", lr=-1, by_name={"critic": {}})
    assert caught.value.error_count() == 1
