import pytest

from ampx.config.suggest import did_you_mean, nearest, nearest_key

KEYS = ["seed", "train.max_steps", "train.max_epochs", "scaler.init_scale", "scaler.kind", "optimizer.kind"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train.max_step", "train.max_steps"),
        ("scalar.init_scale", "scaler.init_scale"),
        ("init_scale", "scaler.init_scale"),
        ("optimiser.kind", "optimizer.kind"),
        ("Seed", "seed"),
        ("zzz", None),
    ],
)
def test_the_nearest_key_is_found_across_sections(typed: str, meant: str | None) -> None:
    assert nearest_key(typed, KEYS) == meant


def test_nothing_is_suggested_where_nothing_is_near() -> None:
    assert nearest("dynamic", ["none", "static"]) is None
    assert did_you_mean(None) == ""
    assert did_you_mean("static") == "; did you mean static?"
