"""Fast float16 on a CPU without float16 arithmetic: slow kernels run as half → float32 kernel → half.

The replacements sit at the CPU dispatch key, below autograd, autocast and the compiler. What flows between
operators, what backward saves and what compiled code looks like is therefore the same as with torch's own
kernels, and a product beyond 65504 is still inf. Only the arithmetic inside one operator is wider.
"""

import warnings
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, library
from torch._C import DispatchKeySet

# Called with the dispatch keys, then as the operator's schema says: hence `Any`.
Kernel = Callable[..., Any]


@contextmanager
def fast_float16() -> Generator[None]:
    """Replace the slow float16 CPU kernels in the whole process until the block ends.

    Calls in another dtype, or in mixed dtypes, reach torch's kernel unchanged, about 2 µs later.
    """
    kernels = {name: replace(_native(name)) for name, replace in _FUNCTIONS.items()}
    kernels |= {name: replace(_native(name), _native(of)) for name, (replace, of) in _WRITERS.items()}
    with library._scoped_library("aten", "IMPL") as overrides:
        with warnings.catch_warnings():  # torch 2.11 warns of what is meant here
            warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
            for name, kernel in kernels.items():
                overrides.impl(name, kernel, "CPU", with_keyset=True, allow_override=True)
        yield


def _native(name: str) -> Kernel:
    return library.get_kernel(f"aten::{name}", "CPU").call_boxed


def _replace_function(native: Kernel) -> Kernel:
    def kernel(keys: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        if not _are_float16(args):
            return native(keys, *args, **kwargs)
        return _narrow(native(keys, *map(_widen, args), **kwargs))

    return kernel


def _replace_out(native: Kernel, function: Kernel) -> Kernel:
    def kernel(keys: DispatchKeySet, *args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        if not _are_float16((*args, out)):
            return native(keys, *args, out=out, **kwargs)
        result = function(keys, *map(_widen, args), **kwargs)
        if out.shape != result.shape:
            return native(keys, *args, out=out, **kwargs)  # torch resizes `out`, with a warning
        return out.copy_(result)

    return kernel


def _replace_in_place(native: Kernel, function: Kernel) -> Kernel:
    def kernel(keys: DispatchKeySet, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not _are_float16((target, *args)):
            return native(keys, target, *args, **kwargs)
        return target.copy_(function(keys, *map(_widen, (target, *args)), **kwargs))

    return kernel


def _replace_convolution(native: Kernel) -> Kernel:
    def kernel(
        keys: DispatchKeySet, x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any
    ) -> Tensor:
        if not _are_float16((x, weight, bias)):
            return native(keys, x, weight, bias, *geometry)
        result = native(keys, *map(_widen, (x, weight, bias)), *geometry)
        return result.to(torch.float16, memory_format=_native_layout(x, weight, *geometry))

    return kernel


def _replace_convolution_backward(native: Kernel) -> Kernel:
    def kernel(keys: DispatchKeySet, grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
        if not _are_float16((grad, x, weight)):
            return native(keys, grad, x, weight, *rest)
        _bias_sizes, *geometry, _output_mask = rest
        layout = _native_layout(x, weight, *geometry)
        *grads, grad_bias = native(keys, *map(_widen, (grad, x, weight)), *rest)
        in_layout = (g if g is None else g.to(torch.float16, memory_format=layout) for g in grads)
        return *in_layout, _narrow(grad_bias)

    return kernel


def _replace_attention(native: Kernel) -> Kernel:
    def kernel(keys: DispatchKeySet, *args: Any, attn_mask: Tensor | None = None, **kwargs: Any) -> Any:
        if not _are_float16((*args, attn_mask)):
            return native(keys, *args, attn_mask=attn_mask, **kwargs)
        output, logsumexp = native(keys, *map(_widen, args), attn_mask=_widen(attn_mask), **kwargs)
        return _narrow(output), logsumexp  # torch keeps logsumexp in float32 whatever the inputs are

    return kernel


def _replace_attention_backward(native: Kernel) -> Kernel:
    def kernel(keys: DispatchKeySet, *args: Any, attn_mask: Tensor | None = None, **kwargs: Any) -> Any:
        *saved, _logsumexp, _dropout_p, _is_causal = args
        if not _are_float16((*saved, attn_mask)):
            return native(keys, *args, attn_mask=attn_mask, **kwargs)
        return _narrow(native(keys, *map(_widen, args), attn_mask=_widen(attn_mask), **kwargs))

    return kernel


def _are_float16(args: Iterable[object]) -> bool:
    """Whether the floating tensors among `args` are float16, all of them."""
    return {x.dtype for x in args if isinstance(x, Tensor) and x.is_floating_point()} == {torch.float16}


def _widen(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype is torch.float16 else x


def _narrow(result: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(map(_narrow, result))
    return result.half() if isinstance(result, Tensor) and result.dtype is torch.float32 else result


def _native_layout(x: Tensor, weight: Tensor, *geometry: Any) -> torch.memory_format:
    """The memory format of torch's own float16 convolution, which compiled code counts on."""
    if x.dim() < 4:
        return torch.preserve_format
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    backend = torch._C._select_conv_backend(x, weight, bias=None, **dict(zip(names, geometry, strict=True)))
    return torch._C._conv_determine_backend_memory_format(x, weight, backend)


_FUNCTIONS: dict[str, Callable[[Kernel], Kernel]] = {
    "mm": _replace_function,  # products with a vector are not slow
    "bmm": _replace_function,
    "addmm": _replace_function,
    "baddbmm": _replace_function,
    "_addmm_activation": _replace_function,
    "convolution": _replace_convolution,
    "convolution_backward": _replace_convolution_backward,
    "mkldnn_rnn_layer": _replace_function,
    "mkldnn_rnn_layer_backward": _replace_function,
    "_scaled_dot_product_flash_attention_for_cpu": _replace_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _replace_attention_backward,
}
_WRITERS: dict[str, tuple[Callable[[Kernel, Kernel], Kernel], str]] = {
    "mm.out": (_replace_out, "mm"),
    "bmm.out": (_replace_out, "bmm"),
    "addmm.out": (_replace_out, "addmm"),
    "addmm_": (_replace_in_place, "addmm"),
    "baddbmm.out": (_replace_out, "baddbmm"),
    "baddbmm_": (_replace_in_place, "baddbmm"),
}
