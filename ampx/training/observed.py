"""Which dtypes the first attempt really used, seen by hooks and held against what was asked."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from ampx.numerics.dtypes import dtype_name
from ampx.numerics.policy import PrecisionPolicy


class PrecisionMismatchError(ValueError):
    """The precision that was asked for was not the one that ran."""


class FirstStep:
    """Watches one attempt: install, let it run, then `remove` and `report`."""

    def __init__(self, model: nn.Module, islands: Iterable[str]) -> None:
        self._model = model
        self._islands = tuple(islands)
        self._computed: dict[str, torch.dtype] = {}
        self._outputs: set[torch.dtype] = set()
        self._gradients: Counter[str] = Counter()
        self._handles = list(self._install())

    def _install(self) -> Iterator[RemovableHandle]:
        for name, module in self._model.named_modules():
            if _multiplies(module) and name not in self._islands:  # an island casts its result back
                yield module.register_forward_hook(self._note_computed(name))
        yield self._model.register_forward_hook(lambda _m, _i, output: self._outputs.update(_dtypes(output)))
        for parameter in self._model.parameters():
            if parameter.requires_grad:
                yield parameter.register_post_accumulate_grad_hook(self._note_gradient)

    def _note_computed(self, name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            for dtype in _dtypes(output)[:1]:
                self._computed[name] = dtype

        return hook

    def _note_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                raise ValueError(
                    f"a parameter of shape {tuple(parameter.shape)} gets sparse gradients, which cannot be "
                    "clipped and checked together with the others; use sparse=False in its embedding"
                )
            self._gradients[dtype_name(parameter.grad.dtype)] += 1

    def remove(self) -> None:
        """Take every hook away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def report(self, optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
        """Dtypes by part, each with how many tensors (for `compute`: modules) had it."""
        return {
            "param_dtype": _count(parameter.dtype for parameter in self._model.parameters()),
            "compute_dtype": _count(self._computed.values()),
            "grad_dtype": dict(self._gradients),
            "buffer_dtype": _count(b.dtype for b in self._model.buffers() if b.is_floating_point()),
            "output_dtype": sorted(map(dtype_name, self._outputs)),
            "optimizer_dtype": _count(_state_dtypes(optimizers)),
        }

    def check(self, policy: PrecisionPolicy) -> list[str]:
        """Raise when the compute dtype that was asked for never ran; else notes on modules that differ."""
        outside = {name: dtype for name, dtype in self._computed.items() if not self._is_in_island(name)}
        if not self._computed:
            return ["no layer with a weight matrix was seen, so dtype.compute_dtype could not be checked"]
        different = [name for name, dtype in outside.items() if dtype != policy.compute_dtype]
        if not different:
            return []
        asked = dtype_name(policy.compute_dtype)
        ran = sorted({dtype_name(outside[name]) for name in different})
        if len(different) == len(outside):
            raise PrecisionMismatchError(
                f"dtype.compute_dtype={asked}: every layer computed in {', '.join(ran)} in the first step; "
                "does the model switch autocast off or cast its inputs? Name such parts in dtype.islands"
            )
        which, dtypes = ", ".join(different[:5]), ", ".join(ran)
        return [f"{len(different)} of {len(outside)} layers computed in {dtypes}: {which}"]

    def _is_in_island(self, name: str) -> bool:
        return any(name == island or name.startswith(f"{island}.") or not island for island in self._islands)


def _multiplies(module: nn.Module) -> bool:
    """A layer whose own weight is a matrix that it multiplies with; an embedding only looks rows up."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return False
    return any(parameter.ndim >= 2 for parameter in module.parameters(recurse=False)) and _is_leaf(module)


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _dtypes(value: Any) -> list[torch.dtype]:
    return [
        leaf.dtype for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]


def _state_dtypes(optimizers: Mapping[str, Optimizer]) -> Iterator[torch.dtype]:
    for optimizer in optimizers.values():
        for state in optimizer.state.values():
            yield from (
                value.dtype for value in state.values() if isinstance(value, Tensor) and value.ndim > 0
            )


def _count(dtypes: Iterable[torch.dtype]) -> dict[str, int]:
    return dict(Counter(map(dtype_name, dtypes)))
