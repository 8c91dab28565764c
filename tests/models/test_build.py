"""Tests of ampx.models.build: every option of the group on data it is meant for, and a user's own model."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter
from torch import nn

from ampx.config.model import ModelSettings
from ampx.models.build import build_model
from ampx.spec import DataSpec

CONF = Path(__file__).parents[2] / "conf" / "model"
DIGITS = DataSpec(input_shape=(1, 8, 8), num_classes=10)
COLOUR = DataSpec(input_shape=(3, 32, 32), num_classes=10)
TEXT = DataSpec(input_shape=(16,), vocab_size=30, context=16)
MADE_FOR = {
    "resnet_small": DIGITS,
    "mlp": DIGITS,
    "vit_tiny": DIGITS,
    "gpt": TEXT,
    "lstm": TEXT,
    "torchvision": COLOUR,
}
PRESETS = ("vit_b16", "resnet50", "convnext")  # large ones of torchvision


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)


def settings(option: str, **changes: Any) -> ModelSettings:
    config = OmegaConf.merge(OmegaConf.load(CONF / f"{option}.yaml"), changes)
    return TypeAdapter(ModelSettings).validate_python(OmegaConf.to_container(config))


@pytest.fixture(autouse=True)
def my_pkg(monkeypatch: pytest.MonkeyPatch) -> None:
    """This very file, importable as a user's module would be."""
    monkeypatch.setitem(sys.modules, "my_pkg", sys.modules[__name__])


def test_every_option_is_tried_here() -> None:
    assert {file.stem for file in CONF.glob("*.yaml")} == {*MADE_FOR, *PRESETS, "custom"}


@pytest.mark.parametrize("option", MADE_FOR)
def test_every_option_trains_a_step_under_bf16_autocast(option: str) -> None:
    spec = MADE_FOR[option]
    torch.manual_seed(0)
    model = build_model(settings(option), spec)
    if spec is TEXT:
        x, last = torch.randint(spec.vocab_size, (2, 16)), spec.vocab_size
    else:
        x, last = torch.rand(2, *spec.input_shape), spec.num_classes
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
        loss = logits.float().logsumexp(dim=-1).mean()
    loss.backward()
    assert logits.shape == ((2, 16, last) if spec is TEXT else (2, last))
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("option", PRESETS)
def test_every_preset_names_a_model_that_takes_the_data(option: str) -> None:
    with torch.device("meta"):  # shapes need no numbers
        assert build_model(settings(option), COLOUR)(torch.rand(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("option", ["resnet_small", "mlp", "vit_tiny", "gpt", "lstm"])
def test_the_same_seed_builds_the_same_parameters_and_keys_can_be_restored(option: str) -> None:
    models: list[nn.Module] = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        models.append(build_model(settings(option), MADE_FOR[option]))
    states = [model.state_dict() for model in models]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert any(not torch.equal(states[0][key], states[2][key]) for key in states[0])
    models[2].load_state_dict(states[0])
    assert all(torch.equal(states[0][key], tensor) for key, tensor in models[2].state_dict().items())


def test_data_without_the_sizes_that_a_model_needs_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"model=gpt: needs vocab_size, context, .*give .*image_size.*choose data"
    ):
        build_model(settings("gpt"), DIGITS)
    with pytest.raises(
        ValueError, match=r"model=mlp: needs in_features, num_classes, but the data give vocab"
    ):
        build_model(settings("mlp"), TEXT)


def test_a_user_model_gets_the_typed_arguments_and_nothing_else() -> None:
    model = build_model(settings("custom", _target_="my_pkg.Net", width=3), DIGITS)
    assert isinstance(model, Net)
    with pytest.raises(ValueError, match=r"my_pkg\.Net: needs a value for width; add \+model\.width=…"):
        build_model(settings("custom", _target_="my_pkg.Net"), DIGITS)


def test_a_user_target_that_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\._target_=builtins\.dict: gave a dict; .*torch\.nn\.Module"):
        build_model(settings("custom", _target_="builtins.dict"), DIGITS)


def test_building_a_small_model_and_small_data_imports_no_torchvision() -> None:
    code = (
        "import sys\n"
        "import ampx.models.build, ampx.models.mlp, ampx.data.build, ampx.data.digits, ampx.data.text\n"
        "import ampx.data.vision, ampx.models.torchvision, ampx.tasks.build\n"
        "print('torchvision' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.split() == ["False", "False"]
