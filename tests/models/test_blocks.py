"""Tests of ampx.models.blocks."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager

from ampx.models.blocks import checkpoint_blocks, find_blocks
from ampx.models.gpt import GPT
from ampx.models.mlp import MLP
from ampx.models.resnet_small import ResNetSmall


def gpt(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(width=16, depth=3, heads=2, dropout=dropout, tie_weights=True, vocab_size=11, context=8)


def resnet() -> ResNetSmall:
    torch.manual_seed(0)
    return ResNetSmall(width=4, blocks=[1, 1], in_channels=1, num_classes=3)


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in find_blocks(model)]


def test_blocks_of_our_models_are_found() -> None:
    assert names(gpt()) == ["blocks.0", "blocks.1", "blocks.2"]
    assert names(resnet()) == ["blocks.0", "blocks.1"]
    assert names(MLP(hidden=[4, 4], in_features=4, num_classes=2)) == []


def test_only_the_outermost_of_nested_blocks_count() -> None:
    inner = lambda: nn.ModuleDict({"a": nn.Linear(1, 1)})  # noqa: E731
    block = lambda: nn.ModuleDict({"stack": nn.ModuleList([inner(), inner()]), "out": nn.Linear(1, 1)})  # noqa: E731
    assert names(nn.Sequential(block(), nn.ReLU(), block())) == ["0", "2"]


@pytest.mark.parametrize(
    ("name", "count", "first"),
    [
        ("resnet18", 8, "layer1.0"),
        ("convnext_tiny", 18, "features.1.0"),
        ("vit_b_32", 12, "encoder.layers.encoder_layer_0"),
        ("densenet121", 4, "features.denseblock1"),
    ],
)
def test_blocks_of_torchvision_models_are_found(name: str, count: int, first: str) -> None:
    from torchvision.models import get_model

    with torch.device("meta"):
        found = names(get_model(name))
    assert (len(found), found[0]) == (count, first)


def test_recomputing_gives_the_same_gradients_with_dropout_and_autocast() -> None:
    """Breaking it: preserve_rng_state=False, under which the recomputed dropout masks differ."""
    plain, recomputing, tokens = gpt(dropout=0.3), gpt(dropout=0.3), torch.randint(11, (4, 8))
    assert checkpoint_blocks(recomputing) == ["blocks.0", "blocks.1", "blocks.2"]
    expected, got = gradients(plain, tokens), gradients(recomputing, tokens)
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_activations_are_recomputed_and_not_kept() -> None:
    model, calls = gpt(), []
    checkpoint_blocks(model)
    model.blocks[0].norm1.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr]
    gradients(model, torch.randint(11, (4, 8)))
    assert len(calls) == 2


def test_recomputing_moves_running_statistics_once() -> None:
    """Breaking it: no context_fn, and every step counts twice in the statistics of BatchNorm."""
    plain, recomputing, x = resnet(), resnet(), torch.rand(8, 1, 8, 8)
    checkpoint_blocks(recomputing)
    expected, got = gradients(plain, x), gradients(recomputing, x)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    buffers = dict(recomputing.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in plain.named_buffers())
    assert buffers["blocks.0.norm1.num_batches_tracked"] == 1


def test_keys_of_the_state_dict_stay_as_they_were() -> None:
    model = gpt()
    keys = list(model.state_dict())
    checkpoint_blocks(model)
    assert list(model.state_dict()) == keys


def test_a_deep_copy_recomputes_with_its_own_parameters() -> None:
    model, tokens = gpt(), torch.randint(11, (2, 8))
    checkpoint_blocks(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    gradients(twin, tokens)
    assert all(p.grad is None for p in model.parameters())
    assert twin(tokens).abs().sum() > 0


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"train\.activation_checkpointing=true: MLP has no repeated blocks.*false"
    ):
        checkpoint_blocks(MLP(hidden=[4], in_features=4, num_classes=2))


def test_compiled_blocks_recompute_too_and_move_running_statistics_once() -> None:
    """Breaking it: a wrapper that dynamo skips, under which nothing is compiled and nothing says so."""
    plain, compiled, x = resnet(), resnet(), torch.rand(8, 1, 8, 8)
    checkpoint_blocks(compiled)
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph.code)
        return aot_eager(graph, inputs)

    for _, block in find_blocks(compiled):
        block.compile(backend=backend)
    expected, got = gradients(plain, x), gradients(compiled, x)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert ["tag_activation_checkpoint" in graph for graph in graphs] == [True, True]
    buffers = dict(compiled.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in plain.named_buffers())
