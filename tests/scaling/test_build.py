import dataclasses
import math
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from ampx.config.scaler import ScalerSettings
from ampx.scaling import Dynamic, Hysteresis, LogMax, Static, Tolerance, build_loss_scaler, build_policy
from ampx.scaling.scale import LossScale

CONF = Path(__file__).resolve().parents[2] / "conf" / "scaler"
POLICIES = {
    "dynamic": Dynamic(min_scale=1.0),
    "conservative": Dynamic(1.2, 0.8, 500, min_scale=1.0),
    "static": Static(min_scale=1.0),
    "hysteresis": Hysteresis(min_scale=1.0),
    "tolerance": Tolerance(min_scale=1.0),
    "logmax": LogMax(min_scale=1.0, max_scale=2.0**24),
}
ODD_VALUES = [-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 1e39, math.inf]


def load(kind, **overrides):
    composed = OmegaConf.to_container(OmegaConf.load(CONF / f"{kind}.yaml")) | overrides
    return TypeAdapter(ScalerSettings).validate_python(composed)


@pytest.mark.parametrize("kind", POLICIES)
def test_every_kind_builds_its_policy(kind):
    assert build_policy(load(kind)) == POLICIES[kind]


@pytest.mark.parametrize("kind", POLICIES)
def test_every_hyperparameter_reaches_the_policy(kind):
    """BUGS 19: configured is effective. Red when a field is left to the policy's own default."""
    changes = {"growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 7, "hysteresis": 5}
    changes |= {"consecutive": True, "tolerance": 0.125, "std_dev": 1.0, "beta1": 0.5, "beta2": 0.75}
    changes |= {"min_scale": 2.0, "max_scale": 2.0**20}
    names = [field.name for field in dataclasses.fields(POLICIES[kind])]
    policy = build_policy(load(kind, **{name: changes[name] for name in names}))
    assert dataclasses.asdict(policy) == {name: changes[name] for name in names}


@pytest.mark.parametrize("value", [-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 1e39, math.inf])
@pytest.mark.parametrize("kind", POLICIES)
def test_settings_and_policy_refuse_the_same_numbers(kind, value):
    """Red when one of the two rules for a number is moved."""
    numbers = [field.name for field in dataclasses.fields(POLICIES[kind]) if field.type is float]
    for name in ["init_scale", *numbers]:
        assert settings_accept(kind, name, value) == scale_accepts(kind, name, value), name


def settings_accept(kind, name, value):
    try:
        load(kind, **{name: value})
    except ValidationError:
        return False
    return True


def scale_accepts(kind, name, value):
    numbers = dataclasses.asdict(POLICIES[kind]) | {"init_scale": load(kind).init_scale, name: value}
    init_scale = numbers.pop("init_scale")
    try:
        LossScale(type(POLICIES[kind])(**numbers), init_scale)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("kind", POLICIES)
def test_an_active_scaler_starts_at_the_configured_scale(kind):
    scaler = build_loss_scaler(load(kind, init_scale=2.0**11), "cpu", active=True)
    assert scaler.policy == POLICIES[kind]
    assert (scaler.is_enabled(), scaler.get_scale()) == (True, 2048.0)


@pytest.mark.parametrize("kind", [*POLICIES, "none"])
def test_an_inactive_scaler_does_nothing(kind):
    assert not build_loss_scaler(load(kind), "cpu", active=False).is_enabled()
