import copy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ampx.config.dtype import DtypeSettings
from ampx.numerics.islands import apply_islands
from ampx.numerics.policy import PrecisionPolicy
from ampx.numerics.storage import set_storage

GROUP = Path(__file__).parents[2] / "conf" / "dtype"
DTYPES = ["fp32", "bf16", "fp16", "bf16_pure", "fp16_pure"]


def policy(name: str, *islands: str) -> PrecisionPolicy:
    values: Any = OmegaConf.to_container(OmegaConf.load(GROUP / f"{name}.yaml"))
    return PrecisionPolicy.from_settings(
        DtypeSettings.model_validate({**values, "islands": list(islands)}), "cpu"
    )


class Spy(nn.Module):
    """Passes its input through a linear layer and notes what it was given and what it computed in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.given: torch.dtype | None = None
        self.computed: torch.dtype | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.given = x.dtype
        out = self.linear(x)
        self.computed = out.dtype
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Spy(), Spy()])
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


def prepare(chosen: PrecisionPolicy, model: nn.Module | None = None) -> tuple[Any, dict[str, str]]:
    torch.manual_seed(0)
    model = model or Net()
    set_storage(model, chosen)
    return model, apply_islands(model, chosen)


def run(model: nn.Module, chosen: PrecisionPolicy) -> Tensor:
    torch.manual_seed(1)
    with chosen.evaluation_region():
        return model(chosen.cast_batch(torch.randn(4, 8)))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_island_computes_in_its_dtype_and_its_neighbours_in_theirs(name: str, dtype: str) -> None:
    """INVARIANTS 20; red when the casts on the way in or out are dropped."""
    chosen = policy(name, f"blocks.0:{dtype}")
    model, claims = prepare(chosen)
    output = run(model, chosen)
    output.float().sum().backward()
    assert claims == {"blocks.0": dtype}
    assert model.blocks[0].given == model.blocks[0].computed == getattr(torch, dtype)
    assert model.blocks[1].computed == output.dtype == chosen.compute_dtype
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())


def test_patterns_match_class_names_and_the_last_pattern_wins() -> None:
    chosen = policy("bf16", "Linear", "blocks.?", "*.0.linear:float16")
    _, claims = prepare(chosen)
    assert claims == {
        "first": "float32",
        "head": "float32",
        "blocks.0": "float32",
        "blocks.1": "float32",
        "blocks.0.linear": "float16",
        "blocks.1.linear": "float32",
    }


def test_an_island_inside_an_island_returns_to_the_outer_dtype() -> None:
    """Red when every island returns to the compute dtype: the outer one would lose its bits."""
    chosen = policy("bf16", "Spy", "*.linear:float16")
    model, _ = prepare(chosen)
    run(model, chosen)
    assert model.blocks[0].given == torch.float32
    assert model.blocks[0].computed == torch.float32


@pytest.mark.parametrize("name", ["bf16", "bf16_pure"])
def test_a_float32_island_is_as_exact_as_float32(name: str) -> None:
    chosen = policy(name, "Net")
    model, claims = prepare(chosen)
    exact, _ = prepare(policy("fp32"))
    assert claims == {"": "float32"}
    inputs = chosen.cast_batch(torch.randn(4, 8))
    with chosen.evaluation_region():
        output = model(inputs)
    assert torch.equal(output, exact(inputs.float()).bfloat16())


def test_a_module_used_twice_is_one_island_under_any_of_its_names() -> None:
    model = nn.ModuleDict({"a": Spy(), "b": nn.Identity()})
    model["c"] = model["a"]
    assert apply_islands(model, policy("bf16", "c")) == {"a": "float32"}


def test_arguments_by_name_and_nested_results_are_cast() -> None:
    class Result(NamedTuple):
        hidden: Tensor
        extras: dict[str, list[Tensor]]

    class Nested(nn.Module):
        def forward(self, x: Tensor, *, memory: dict[str, Tensor]) -> Result:
            assert memory["keys"].dtype == torch.float32
            return Result(x, {"all": [memory["keys"], torch.arange(3)]})

    outer = nn.Sequential(Nested())
    chosen = policy("fp16", "Nested")
    apply_islands(outer, chosen)
    result = outer[0](torch.ones(2).half(), memory={"keys": torch.ones(2).half()})
    assert isinstance(result, Result)
    assert result.hidden.dtype == result.extras["all"][0].dtype == torch.float16
    assert result.extras["all"][1].dtype == torch.int64


def test_a_copy_of_the_model_runs_on_its_own_weights() -> None:
    """Red when the patch is a closure over the module: deepcopy would share it."""
    chosen = policy("bf16", "Spy")
    model, _ = prepare(chosen)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.zero_()
    assert not torch.equal(run(model, chosen), run(twin, chosen))
    assert twin.blocks[0].given == torch.float32


def test_state_dict_keys_do_not_change() -> None:
    model, _ = prepare(policy("bf16", "LayerNorm", "blocks.*"))
    assert list(model.state_dict()) == list(Net().state_dict())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputed_activations_give_the_same_gradients(use_reentrant: bool) -> None:
    chosen = policy("bf16", "Spy")
    model, _ = prepare(chosen)
    twin = copy.deepcopy(model)
    inputs = torch.randn(4, 8, requires_grad=True)
    with chosen.evaluation_region():
        plain = model.blocks[0](inputs)
        again: Any = checkpoint(twin.blocks[0], inputs, use_reentrant=use_reentrant)
    plain.float().sum().backward()
    again.float().sum().backward()
    for expected, actual in zip(model.blocks[0].parameters(), twin.blocks[0].parameters(), strict=True):
        assert torch.equal(expected.grad, actual.grad)


def test_a_compiled_block_computes_the_same_island() -> None:
    """INVARIANTS 23, with the graph traced whole and nothing fused: equal bits."""
    chosen = policy("bf16", "Spy")
    model, _ = prepare(chosen)
    expected = run(model, chosen)
    model.compile(backend="aot_eager", fullgraph=True)
    compiled = run(model, chosen)
    assert torch.equal(compiled, expected)
    compiled.float().sum().backward()
    assert model.blocks[0].given == torch.float32
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("LayerNrom", r"dtype.islands=LayerNrom: .* nearest: LayerNorm"),
        ("block.0", r"nearest: blocks.0"),
        ("zzz", r"nearest: LayerNorm, Linear, ModuleList, Net, Spy"),
        ("blocks", r"blocks only holds modules and is never called itself; use 'blocks.\*'"),
    ],
)
def test_a_pattern_without_effect_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_islands(Net(), policy("bf16", "Linear", pattern))
