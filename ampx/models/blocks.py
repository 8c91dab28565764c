"""The repeated blocks of a model, and recomputing them in the backward pass to save memory."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def find_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Names and modules of the outermost repeated blocks, in order.

    A block is an entry of a ModuleList or Sequential that has parameters and modules of its own, and
    whose class occurs at least twice so; there may be none.
    """
    entries = list(_entries(model, ""))
    counts = Counter(type(module) for _, module in entries)
    blocks: list[tuple[str, nn.Module]] = []
    for name, module in entries:
        is_inside_another = bool(blocks) and name.startswith(blocks[-1][0] + ".")
        if counts[type(module)] > 1 and not is_inside_another:
            blocks.append((name, module))
    return blocks


def checkpoint_blocks(model: nn.Module) -> list[str]:
    """Makes every repeated block recompute its activations in backward; returns the blocks' names."""
    blocks = find_blocks(model)
    if not blocks:
        raise ValueError(
            f"train.activation_checkpointing=true: {type(model).__name__} has no repeated blocks in a "
            "ModuleList or Sequential to recompute; set it to false, or keep the model's layers in one"
        )
    for _, block in blocks:
        # The forward is wrapped, not the module: state-dict keys stay as they are.
        block.forward = partial(_forward_recomputed, block, block.forward)
    return [name for name, _ in blocks]


def _entries(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        fqn = f"{prefix}{name}"
        is_container = isinstance(child, nn.Sequential | nn.ModuleList)
        if isinstance(module, nn.Sequential | nn.ModuleList) and not is_container and _is_composite(child):
            yield fqn, child
        yield from _entries(child, fqn + ".")


def _is_composite(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


def _forward_recomputed(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    recompute = partial(checkpoint, forward, use_reentrant=False)
    if torch.compiler.is_compiling():  # a graph updates buffers once anyway, and allows no contexts here
        return recompute(*args, **kwargs)
    return recompute(*args, context_fn=partial(_contexts, block), **kwargs)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What surrounds the first computation of a block, and what surrounds the second."""
    return nullcontext(), _buffers_kept(block)


@contextmanager
def _buffers_kept(block: nn.Module) -> Generator[None]:
    # Else BatchNorm's running statistics would take in every batch twice.
    buffers = list(block.buffers())
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
