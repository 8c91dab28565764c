"""The fast float16 kernels: as exact as torch's own, and invisible but for their speed.

Every comparison starts from the same float16 values, so that float64 is the truth for both kernels.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ampx.numerics.fast_float16 import fast_float16
from ampx.numerics.isa import probe_cpu

HALF_EPS = torch.finfo(torch.float16).eps
attention = F.scaled_dot_product_attention

# name: the operator, then the shapes of its operands
OPERATORS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(24, 40), (40, 16)]),
    "mm of a transpose": (lambda a, b: a.t() @ b, [(40, 24), (40, 16)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [(16,), (24, 40), (40, 16)]),
    "bmm": (torch.bmm, [(3, 24, 40), (3, 40, 16)]),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5), [(3, 24, 16), (3, 24, 40), (3, 40, 16)]),
    "addbmm": (torch.addbmm, [(24, 16), (3, 24, 40), (3, 40, 16)]),
    "matmul": (torch.matmul, [(2, 3, 24, 40), (40, 16)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(3, 24, 40), (3, 16, 40)]),
    "linear": (F.linear, [(2, 24, 40), (16, 40), (16,)]),
    "bilinear": (F.bilinear, [(8, 24), (8, 16), (4, 24, 16)]),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, stride=2), [(2, 8, 24), (16, 8, 3), (16,)]),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [(2, 8, 9, 9), (16, 8, 3, 3), (16,)]),
    "dilated conv2d": (lambda x, w: F.conv2d(x, w, dilation=2), [(2, 8, 9, 9), (16, 8, 3, 3)]),
    "depthwise conv2d": (lambda x, w: F.conv2d(x, w, groups=8), [(2, 8, 9, 9), (8, 1, 3, 3)]),
    "conv3d": (F.conv3d, [(2, 4, 6, 6, 6), (8, 4, 3, 3, 3), (8,)]),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [(2, 8, 5, 5), (8, 4, 3, 3)]),
    "attention": (attention, [(2, 2, 24, 16)] * 3),
    "causal attention": (lambda q, k, v: attention(q, k, v, is_causal=True), [(2, 2, 24, 16)] * 3),
    "masked attention": (
        lambda q, k, v: attention(q, k, v, attn_mask=(torch.arange(24) < 20).expand(24, 24)),
        [(2, 2, 24, 16)] * 3,
    ),
}


def draw(shapes: Iterable[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).half() for shape in shapes]


def run(operator: Callable[..., Tensor], operands: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The result and the gradient of every operand, all of it in `dtype`."""
    leaves = [x.to(dtype).requires_grad_() for x in operands]
    result = operator(*leaves)
    grad = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).half().to(dtype)
    return [result.detach(), *torch.autograd.grad(result, leaves, grad)]


@pytest.mark.parametrize("name", OPERATORS)
def test_fast_is_as_close_to_float64_as_native(name: str) -> None:
    """Breaks when a kernel computes in bfloat16, or hands its result on in float32."""
    operator, shapes = OPERATORS[name]
    operands = draw(shapes)
    exact = run(operator, operands, torch.float64)
    native = run(operator, operands, torch.float16)
    with fast_float16():
        fast = run(operator, operands, torch.float16)
    for truth, theirs, ours in zip(exact, native, fast, strict=True):
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        rounding = HALF_EPS * truth.abs().max()  # two numbers that differ by one rounding of the result
        assert (ours - truth).abs().max() <= (theirs - truth).abs().max() + rounding


@pytest.mark.parametrize("name", OPERATORS)
def test_every_slow_operator_is_replaced_forward_and_backward(name: str) -> None:
    """Breaks when a line is missing from the table of replacements."""
    operator, shapes = OPERATORS[name]
    with fast_float16():
        assert_all_fast(lambda: run(operator, draw(shapes), torch.float16))


SLOW = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "addmm_",
    "baddbmm_",
    "_addmm_activation",
    "convolution",
    "convolution_backward",
)
SLOW += (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)


def assert_all_fast(work: Callable[[], object]) -> None:
    """Every slow operator that `work` reached has casts inside: only a replacement does that."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        work()
    calls = [e for e in profile.function_events or () if e.name.removeprefix("aten::") in SLOW]
    assert calls
    native = [e.name for e in calls if not any(child.name == "aten::to" for child in e.cpu_children)]
    assert not native


@pytest.mark.skipif(probe_cpu().runs_float16, reason="float16 is not slow on this CPU")
@pytest.mark.usefixtures("one_thread")
def test_fast_is_many_times_faster() -> None:
    """About 50 times, on a CPU without float16 arithmetic."""
    matrix = torch.randn(384, 384).half()
    native_s = product_s(matrix)
    with fast_float16():
        assert product_s(matrix) < native_s / 10


def product_s(matrix: Tensor) -> float:
    times: list[float] = []
    for _ in range(4):
        start = time.thread_time()
        matrix @ matrix
        times.append(time.thread_time() - start)
    return min(times)


@pytest.mark.parametrize("name", ["mm", "linear", "bmm", "conv2d", "conv_transpose2d"])
def test_overflow_is_still_infinite_forward_and_backward(name: str) -> None:
    """Breaks when a replacement saturates, or stays in float32: 300 * 300 * k is beyond 65504."""
    operator, shapes = OPERATORS[name]
    operands = [torch.full(shape, 300.0, dtype=torch.float16) for shape in shapes]
    with fast_float16():
        leaves = [x.requires_grad_() for x in operands]
        result = operator(*leaves)
        grads = torch.autograd.grad(result, leaves, torch.full_like(result, 300.0))
    assert result.isinf().all()
    assert all(grad.isinf().any() for grad in grads[:2])


def test_the_largest_float16_does_not_overflow() -> None:
    with fast_float16():
        product = torch.full((1, 1), 65504.0).half() @ torch.ones(1, 1).half()
    assert product.item() == 65504.0


# What must stay exactly as it was


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "conv2d", "attention"])
def test_other_dtypes_are_left_alone(name: str, dtype: torch.dtype) -> None:
    """INVARIANTS 19; breaks when a kernel narrows whatever comes out of it."""
    if dtype.is_complex and name == "attention":
        pytest.skip("torch has no complex attention")
    operator, shapes = OPERATORS[name]
    operands = draw(shapes)
    native = run(operator, operands, dtype)
    with fast_float16():
        fast = run(operator, operands, dtype)
    assert all(x.dtype == dtype and torch.equal(x, y) for x, y in zip(fast, native, strict=True))


def test_integer_products_are_left_alone() -> None:
    matrix = torch.arange(9).view(3, 3)
    expected = matrix @ matrix
    with fast_float16():
        assert torch.equal(matrix @ matrix, expected)


@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("operator", [torch.mm, lambda a, b: F.conv1d(a[None], b[None])])
def test_mixed_dtypes_raise_what_torch_raises(operator: Callable[..., Tensor], other: torch.dtype) -> None:
    """A dtype bug in the user's model must not be healed by the fast kernels."""
    half, odd = torch.ones(3, 3).half(), torch.ones(3, 3).to(other)
    with pytest.raises(RuntimeError) as native:
        operator(half, odd)
    with fast_float16(), pytest.raises(RuntimeError) as fast:
        operator(half, odd)
    assert str(fast.value) == str(native.value)


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm"])
def test_out_is_written_and_returned(name: str) -> None:
    """Breaks when an `.out` kernel, which compiled code calls, is missing from the table."""
    operator = getattr(torch, name)
    operands = draw(OPERATORS[name][1])
    with fast_float16():
        result = operator(*operands)
        out = torch.empty_like(result)
        assert operator(*operands, out=out) is out
        assert_all_fast(lambda: operator(*operands, out=torch.empty_like(out)))
    assert torch.equal(out, result)


def test_out_of_another_shape_is_resized_as_torch_does() -> None:
    a, out = torch.ones(3, 3).half(), torch.empty(0).half()
    with fast_float16():
        torch.addmm(a, a, a, out=out)
    assert torch.equal(out, torch.full((3, 3), 4.0).half())


def test_out_of_another_dtype_raises_as_torch_does() -> None:
    a = torch.ones(3, 3).half()
    with fast_float16(), pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        torch.mm(a, a, out=torch.empty(3, 3))


def test_in_place_products_write_in_place() -> None:
    """Breaks when an in-place kernel is missing from the table, or gives back another tensor."""
    a, target = torch.ones(2, 2).half(), torch.ones(2, 2).half()
    with fast_float16():
        assert_all_fast(lambda: torch.zeros(1, 2, 2).half().baddbmm_(a[None], a[None]))
        assert_all_fast(lambda: torch.zeros(2, 2).half().addmm_(a, a))
        assert target.addmm_(a, a, beta=2) is target
        assert target[None].baddbmm_(a[None], a[None]).data_ptr() == target.data_ptr()
    assert torch.equal(target, torch.full_like(target, 6.0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_empty_products_work(dtype: torch.dtype) -> None:
    with fast_float16():
        assert torch.equal(torch.empty(2, 0, dtype=dtype) @ torch.empty(0, 3, dtype=dtype), torch.zeros(2, 3))


class Shared(nn.Module):
    """A convolution, attention, and one weight used twice in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.depthwise(self.conv(x).relu()).flatten(2).transpose(1, 2)[:, None]
        q = self.linear(self.linear(tokens))
        return attention(q, q, q).mean((1, 2))


def step(model: nn.Module, x: Tensor, *, is_autocast: bool = False) -> list[Tensor]:
    """The output of `model` and the gradient of every parameter."""
    model.zero_grad()
    with torch.autocast("cpu", torch.float16, enabled=is_autocast):
        output = model(x)
    output.sum().backward()
    return [output.detach(), *(p.grad for p in model.parameters())]


class Trace(TorchDispatchMode):
    """Every operator that reached dispatch, with the dtype of what it gave back."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[torch.dtype, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        outs = out if isinstance(out, tuple) else (out,)
        self.calls.append((str(func), tuple(x.dtype for x in outs if isinstance(x, Tensor))))
        return out


def train_once(model: nn.Module, x: Tensor, dtype: torch.dtype = torch.float16) -> tuple[Any, list[Any]]:
    """The trace of one forward and backward under autocast, and what autograd saved for it."""
    saved: list[tuple[torch.Size, torch.dtype]] = []

    def note(x: Tensor) -> Tensor:
        saved.append((x.shape, x.dtype))
        return x

    with Trace() as trace, torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        with torch.autocast("cpu", dtype):
            loss = model(x).float().sum()
        loss.backward()
    return trace.calls, saved


def test_a_step_dispatches_and_saves_what_it_does_with_native_kernels() -> None:
    """No float32 copy is saved for backward, and autocast still casts the shared weight once a region.

    Breaks when the kernels are put above autograd, or replace autocast's own.
    """
    x = torch.randn(2, 4, 6, 6)
    native = train_once(Shared(), x)
    with fast_float16():
        fast = train_once(Shared(), x)
    assert fast == native
    assert torch.float16 in {dtype for _, dtype in fast[1]}


def test_bfloat16_autocast_is_bit_identical() -> None:
    torch.manual_seed(0)
    model, x = Shared(), torch.randn(2, 4, 6, 6)
    train_once(model, x, torch.bfloat16)
    native = [p.grad for p in model.parameters()]
    model.zero_grad()
    with fast_float16():
        train_once(model, x, torch.bfloat16)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), native, strict=True))


LAYOUTS = [torch.contiguous_format, torch.channels_last_3d]


@pytest.mark.parametrize("weight_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("convolve", [F.conv3d, F.conv_transpose3d])
def test_convolutions_keep_the_memory_format_that_torch_gives(
    convolve: Callable[..., Tensor], layout: torch.memory_format, weight_layout: torch.memory_format
) -> None:
    """Compiled code asserts these strides; breaks without `memory_format=` in the replacements."""
    x, weight = draw([(2, 8, 4, 4, 4), (8, 8, 3, 3, 3)])
    operands = [x.to(memory_format=layout), weight.to(memory_format=weight_layout)]
    native = run(convolve, operands, torch.float16)
    with fast_float16():
        fast = run(convolve, operands, torch.float16)
    assert [x.stride() for x in fast] == [x.stride() for x in native]


def test_the_transformer_fast_path_is_as_exact_as_native() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu").half().eval()
    (x,) = draw([(2, 6, 16)])
    with torch.inference_mode():
        native = layer(x)
        with fast_float16():
            fast = layer(x)
            assert_all_fast(lambda: layer(x))
        exact = layer.double()(x.double())
    rounding = HALF_EPS * exact.abs().max()
    assert (fast - exact).abs().max() <= (native - exact).abs().max() + rounding


# Under the compiler


@pytest.fixture
def backward_outside_autocast() -> Iterator[None]:
    import torch._functorch.config

    with torch._functorch.config.patch(backward_pass_autocast="off"):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("backward_outside_autocast")
def test_one_compiled_graph_serves_both_kernels() -> None:
    """Compiled under native kernels, then run under fast ones: same graph, as exact, inf where native has it.

    Breaks when the replacements for `.out`, which compiled code calls, are missing from the table.
    """
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = Shared().half().float().to(memory_format=torch.channels_last)
    (x,) = draw([(2, 4, 6, 6)])
    exact = step(deepcopy(model).double(), x.double())
    compiled = torch.compile(model)
    native = step(compiled, x.float(), is_autocast=True)
    with fast_float16():
        fast = step(compiled, x.float(), is_autocast=True)
        assert_all_fast(lambda: step(compiled, x.float(), is_autocast=True))
        nn.init.constant_(model.conv.weight, 300.0)
        overflown, *_ = step(compiled, x.float().abs() * 300, is_autocast=True)
    assert (counters["stats"]["unique_graphs"], dict(counters["graph_break"])) == (1, {})
    for ours, theirs, truth in zip(fast, native, exact, strict=True):
        assert (ours - truth).abs().max() <= 2 * (theirs - truth).abs().max() + HALF_EPS * truth.abs().max()
    assert overflown.dtype == torch.float16
    assert not overflown.isfinite().any()
