"""The repeated blocks of a model, and recomputing them in the backward pass to save memory."""

from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
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
        block.forward = partial(
            checkpoint, block.forward, use_reentrant=False, context_fn=partial(_contexts, block)
        )
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


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _running_statistics_frozen(block)


@contextmanager
def _running_statistics_frozen(block: nn.Module) -> Generator[None]:
    """Recomputing must not move the running statistics of BatchNorm a second time."""
    norms = [
        module for module in block.modules() if isinstance(module, _BatchNorm) and module.track_running_stats
    ]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
