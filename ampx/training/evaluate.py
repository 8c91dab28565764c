"""Evaluation under the declared precision, with the averaged weights where there is an EMA."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from ampx.data.splits import BatchSource
from ampx.training.assemble import Setup
from ampx.training.ema import Ema
from ampx.training.feed import to_device


def evaluate(setup: Setup, ema: Ema, batches: Iterable[Any] | None = None) -> dict[str, float]:
    """The task's metrics over the validation split, or over `batches`; training mode is put back."""
    modes = [(module, module.training) for module in setup.model.modules()]  # a part may be frozen in eval
    setup.model.eval()
    try:
        with torch.inference_mode(), ema.swapped(setup.model), setup.policy.evaluation_region():
            metrics = setup.task.evaluate(setup.model, _batches(setup, batches))
    finally:
        for module, is_training in modes:
            module.training = is_training
    return {name: float(value) for name, value in metrics.items()}


def _batches(setup: Setup, batches: Iterable[Any] | None) -> Iterator[Any]:
    if batches is None:
        val = setup.splits.val
        batches = val.iterate(0, 0) if isinstance(val, BatchSource) else val
    for batch in islice(batches, setup.config.train.limit_batches):
        yield setup.policy.cast_batch(to_device(batch, setup.device))
