"""float16 recurrent networks on a CPU, where torch's own LSTM fails under autocast."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from ampx.numerics.fast_float16 import fast_float16
from ampx.numerics.isa import probe_cpu

HALF_EPS = torch.finfo(torch.float16).eps


def build_recurrent(kind: str, *, bidirectional: bool) -> nn.RNNBase:
    torch.manual_seed(0)
    model = getattr(nn, kind)(8, 16, num_layers=2, batch_first=True, bidirectional=bidirectional)
    return model.half().float()  # weights that float16 holds exactly


def draw_sequences(*, packed: bool) -> Any:
    x = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0)).half()
    return pack_padded_sequence(x, [6, 4, 1], batch_first=True) if packed else x


def step(model: nn.RNNBase, x: Any, *, is_autocast: bool = False) -> list[Tensor]:
    """The output sequence and the gradient of every parameter."""
    model.zero_grad()
    with torch.autocast("cpu", torch.float16, enabled=is_autocast):
        output, _state = model(x)
    output = output.data if isinstance(output, PackedSequence) else output
    output.sum().backward()
    return [output.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("is_autocast", [True, False], ids=["autocast", "pure"])
@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_networks_train(kind: str, bidirectional: bool, packed: bool, is_autocast: bool) -> None:
    """Breaks without `mkldnn_rnn_layer` in the table: torch's own float16 LSTM dies inside oneDNN."""
    model, x = build_recurrent(kind, bidirectional=bidirectional), draw_sequences(packed=packed)
    exact = step(model.double(), x.double())
    dtype = torch.float32 if is_autocast else torch.float16
    with fast_float16():
        fast = step(model.to(dtype), x.to(dtype), is_autocast=is_autocast)
    # 2 layers of 6 steps, each rounding gates and states: hidden values are below 1, gradients as they are
    for ours, truth in zip(fast, exact, strict=True):
        assert (ours - truth).abs().max() <= 2 * 6 * HALF_EPS * truth.abs().max().clamp(min=1)


@pytest.mark.skipif(probe_cpu().runs_float16, reason="this CPU has a float16 LSTM")
def test_the_native_float16_lstm_is_what_fails() -> None:
    """When this fails, torch has learned it, and the replacement can go."""
    model, x = build_recurrent("LSTM", bidirectional=False), draw_sequences(packed=False)
    with torch.autocast("cpu", torch.float16), pytest.raises(RuntimeError, match="LSTM forward propagation"):
        model(x.float())
