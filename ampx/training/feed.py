"""Micro-batches for attempted steps, from a position that survives a checkpoint."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ampx.data.seeding import mixed_seed, seeded
from ampx.data.splits import BatchSource


class Feed:
    """Cuts epochs of a source into effective batches of `grad_accumulation` micro-batches.

    The last effective batch of an epoch holds what is left. The position is (epoch, micro-batches
    taken in it). A source that is no `BatchSource` must be an iterable with a length, which resumes by
    skipping, or carry `state_dict`, which resumes by itself.
    """

    def __init__(
        self,
        source: Any,
        *,
        grad_accumulation: int,
        limit_batches: int | None,
        overfit_batches: int | None,
        device: torch.device,
        seed: int,
    ) -> None:
        self.epoch = 0
        self.taken = 0
        self._source = source
        self._accumulation = grad_accumulation
        self._limit = limit_batches
        self._device = device
        self._seed = seed
        self._chunks: Iterator[list[Any]] | None = None
        self.pinned: list[Any] | None = None
        if overfit_batches is not None:
            self.pinned = list(islice(self._iterate(0, 0), overfit_batches))

    @property
    def batches_per_epoch(self) -> int | None:
        """Micro-batches of one epoch, None when the source has no length."""
        if self.pinned is not None:
            return len(self.pinned)
        length = len(self._source) if hasattr(self._source, "__len__") else None
        limits = [number for number in (length, self._limit) if number is not None]
        return min(limits) if limits else None

    @property
    def steps_per_epoch(self) -> int | None:
        """Attempted steps of one epoch, the short tail included."""
        batches = self.batches_per_epoch
        return None if batches is None else -(-batches // self._accumulation)

    @property
    def can_resume(self) -> bool:
        """Whether a checkpoint can hold this feed's position."""
        return hasattr(self._source, "__len__") or hasattr(self._source, "state_dict")

    @property
    def is_at_epoch_start(self) -> bool:
        """True before the first step and right after the last step of an epoch."""
        return self.taken == 0

    def take(self) -> list[Any]:
        """The micro-batches of the next effective batch, on the device."""
        self._chunks = self._chunks or self._open()
        chunk = next(self._chunks, None)
        if chunk is None:
            self._check_end()
            self._next_epoch()
            return self.take()
        self.taken += len(chunk)
        if self.taken == self.batches_per_epoch:
            self._next_epoch()
        return [to_device(batch, self._device) for batch in chunk]

    def _check_end(self) -> None:
        if self.taken == 0:
            raise ValueError(
                "data: the training data yields no batch; give it samples or lower data.batch_size"
            )
        if self.batches_per_epoch is not None:
            raise ValueError(
                f"data: the training data announced {self.batches_per_epoch} batches, but epoch {self.epoch} "
                f"ended after {self.taken}; make len(train) the number of batches it yields"
            )

    def _next_epoch(self) -> None:
        self.epoch, self.taken, self._chunks = self.epoch + 1, 0, None

    def _open(self) -> Iterator[list[Any]]:
        batches = self._iterate(self.epoch, self.taken)
        limit = self.batches_per_epoch
        if limit is not None:
            batches = islice(batches, limit - self.taken)
        return iter(lambda: list(islice(batches, self._accumulation)), [])

    def _iterate(self, epoch: int, start: int) -> Iterator[Any]:
        if self.pinned is not None:
            return iter(self.pinned[start:])
        if isinstance(self._source, BatchSource):
            return self._source.iterate(epoch, start)
        if hasattr(self._source, "state_dict"):
            return iter(self._source)
        with seeded(mixed_seed(self._seed, epoch)):  # a DataLoader's order comes from the global generators,
            batches = iter(self._source)  # and is drawn only when its first batch is asked for
            first = list(islice(batches, max(start, 1)))[start:]
        return chain(first, batches)

    def state_dict(self) -> dict[str, Any]:
        """The position; with the source's own state where it keeps one."""
        state: dict[str, Any] = {"epoch": self.epoch, "taken": self.taken}
        if not isinstance(self._source, BatchSource) and hasattr(self._source, "state_dict"):
            state["source"] = self._source.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind the last micro-batch that was taken."""
        if not self.can_resume:
            raise ValueError(
                "resume: the training data has neither a length nor state_dict, so its position is unknown; "
                "give it __len__ (batches per epoch) or state_dict/load_state_dict"
            )
        self.epoch, self.taken, self._chunks = state["epoch"], state["taken"], None
        if "source" in state:
            self._source.load_state_dict(state["source"])


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with every tensor on `device`; containers keep their type."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    return tree_map_only(Tensor, lambda tensor: tensor.to(device, non_blocking=True), batch)
