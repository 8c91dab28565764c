from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from ampx.config.scaler import ScalerSettings

CONF = Path(__file__).resolve().parents[2] / "conf" / "scaler"
KINDS = sorted(path.stem for path in CONF.glob("*.yaml"))


def load(kind, **overrides):
    composed = OmegaConf.merge(OmegaConf.load(CONF / f"{kind}.yaml"), overrides)
    return TypeAdapter(ScalerSettings).validate_python(OmegaConf.to_container(composed))


def test_every_kind_has_its_yaml():
    assert KINDS == [
        "conservative", "dynamic", "hysteresis", "logmax", "none", "static", "tolerance",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_yaml_of_every_kind_is_complete_and_valid(kind):
    settings = load(kind)
    assert settings.kind == kind
    assert (settings.abort_after_skips, settings.allow_unscaled) == (50, False)


def test_conservative_holds_the_published_numbers():
    settings = load("conservative")
    numbers = (settings.init_scale, settings.growth_factor, settings.backoff_factor, settings.growth_interval)
    assert numbers == (262144.0, 1.2, 0.8, 500)


@pytest.mark.parametrize(
    ("typed", "value"), [("auto", "auto"), ("Auto", "auto"), (True, True), ("true", True), (False, False)]
)
def test_enabled_is_auto_or_a_truth_value(typed, value):
    assert load("dynamic", enabled=typed).enabled is value


@pytest.mark.parametrize("typed", ["maybe", 1, None])
def test_any_other_enabled_is_refused(typed):
    with pytest.raises(ValidationError, match="must be auto, true or false"):
        load("dynamic", enabled=typed)


def test_numbers_may_be_typed_as_arithmetic():
    settings = load("dynamic", init_scale="2**10", max_scale="inf", growth_interval="3e2")
    assert (settings.init_scale, settings.max_scale, settings.growth_interval) == (1024.0, float("inf"), 300)


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        ("dynamic", {"growth_factor": 1.0}, "greater than 1"),
        ("dynamic", {"growth_factor": "inf"}, "finite number"),
        ("dynamic", {"backoff_factor": 1.0}, "less than 1"),
        ("dynamic", {"growth_interval": 0}, "greater than or equal to 1"),
        ("dynamic", {"init_scale": 0}, "greater than 0"),
        ("dynamic", {"init_scale": "inf"}, "finite number"),
        ("dynamic", {"min_scale": -1}, "greater than or equal to 0"),
        ("dynamic", {"abort_after_skips": 0}, "greater than or equal to 1"),
        ("hysteresis", {"hysteresis": 0}, "greater than or equal to 1"),
        ("tolerance", {"tolerance": 1.5}, "less than or equal to 1"),
        ("logmax", {"beta1": 1.0}, "less than 1"),
        ("static", {"growth_interval": 5}, "Extra inputs are not permitted"),
        ("none", {"enabled": True}, "Extra inputs are not permitted"),
        (
            "static",
            {"init_scale": 0.5},
            r"init_scale=0.5: must lie within scaler.min_scale=1 and.*widen the bounds",
        ),
    ],
)
def test_impossible_settings_are_refused(kind, overrides, message):
    with pytest.raises(ValidationError, match=message):
        load(kind, **overrides)
