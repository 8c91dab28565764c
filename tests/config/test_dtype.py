from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from ampx.config.dtype import DtypeSettings, parse_island

GROUP = Path(__file__).parents[2] / "conf" / "dtype"
NAMES = sorted(path.stem for path in GROUP.glob("*.yaml"))


def load(name: str, **changes: Any) -> DtypeSettings:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return DtypeSettings.model_validate({**values, **changes})


def test_the_group_has_the_six_precisions() -> None:
    assert NAMES == ["bf16", "bf16_pure", "fp16", "fp16_pure", "fp32", "tf32"]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_builds_under_its_own_name(name: str) -> None:
    assert load(name).name == name


def test_only_the_pure_options_store_parameters_in_a_low_dtype() -> None:
    assert {name for name in NAMES if load(name).param_dtype != "float32"} == {"bf16_pure", "fp16_pure"}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bf16", {"param_dtype": "float16"}, r"dtype.compute_dtype=bfloat16; set one of these"),
        ("fp32", {"scope": "step"}, r"use dtype.scope=forward_loss, dtype=bf16 or dtype=fp16"),
        ("bf16_pure", {"scope": "forward_raw"}, r"there is none while dtype.param_dtype equals"),
        (
            "bf16",
            {"scope": "forward_raw", "output_dtype": "float32"},
            r"use dtype.output_dtype=null or dtype.scope=forward_loss",
        ),
        (
            "bf16",
            {"islands": ["LayerNorm:fp8"]},
            r"'LayerNorm:fp8' must be a pattern .* for example",
        ),
        ("bf16", {"islands": [":float32"]}, r"':float32' must be a pattern"),
        ("fp16", {"masters": "float32"}, r"use dtype.masters=none, dtype=bf16_pure or dtype=fp16_pure"),
    ],
)
def test_an_impossible_pair_says_its_way_out(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        load(name, **changes)
    assert caught.value.error_count() == 1


def test_one_wrong_dtype_is_reported_once() -> None:
    with pytest.raises(ValidationError) as caught:
        load("bf16", compute_dtype="float8")
    assert caught.value.error_count() == 1


def test_an_island_is_float32_unless_it_names_a_dtype() -> None:
    assert parse_island("encoder.*.norm?") == ("encoder.*.norm?", "float32")
    assert parse_island("LayerNorm:bfloat16") == ("LayerNorm", "bfloat16")
