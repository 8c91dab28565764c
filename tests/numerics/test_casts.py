from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from ampx.numerics.casts import cast_floating


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Output:
    logits: Tensor
    name: str


def test_floating_tensors_are_cast_wherever_they_are_nested() -> None:
    x = torch.ones(2)
    nested = {"pair": Pair(x, [x, (x, None)]), "output": Output(x, "kept"), "n": 3}
    cast = cast_floating(nested, torch.bfloat16)
    assert cast["pair"].left.dtype == torch.bfloat16
    assert cast["pair"].right[1][0].dtype == torch.bfloat16
    assert cast["output"].logits.dtype == torch.bfloat16
    assert (cast["output"].name, cast["n"], type(cast["pair"])) == ("kept", 3, Pair)
    assert nested["pair"].left is x, "the argument itself must not change"


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.complex64, torch.int64, torch.bool, torch.uint8, torch.float8_e4m3fn]
)
def test_other_dtypes_are_the_same_tensor(dtype: torch.dtype) -> None:
    """INVARIANTS 19; red when the cast asks `is_floating_point()` instead."""
    x = torch.ones(2).to(dtype)
    assert cast_floating(x, torch.float16) is x


def test_mappings_keep_their_type_and_their_default() -> None:
    grouped = defaultdict(list, {"a": [torch.ones(1)]})
    cast = cast_floating(grouped, torch.float16)
    assert cast["a"][0].dtype == torch.float16
    assert cast["missing"] == []
    assert type(cast_floating(OrderedDict(a=torch.ones(1)), torch.float16)) is OrderedDict
    assert cast_floating(MappingProxyType({"a": torch.ones(1)}), torch.float16)["a"].dtype == torch.float16


def test_a_packed_sequence_keeps_its_batch_sizes() -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    cast = cast_floating(packed, torch.bfloat16)
    assert cast.data.dtype == torch.bfloat16
    assert torch.equal(cast.batch_sizes, packed.batch_sizes)


def test_gradients_flow_back_through_the_cast() -> None:
    x = torch.ones(2, requires_grad=True)
    cast_floating([x], torch.bfloat16)[0].sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
