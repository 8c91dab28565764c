"""Keeps a skipped step from leaving NaN in BatchNorm's running statistics (and in any other buffer)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class _Saved:
    owner: nn.Module
    name: str
    copy: Tensor
    version: int
    is_touched: bool = False

    def current(self) -> Tensor | None:
        return self.owner._buffers[self.name]


class BufferGuard:
    """One snapshot of the buffers per effective batch; a buffer nobody writes to is copied once, ever."""

    def __init__(self, model: nn.Module) -> None:
        self._saved = [
            _Saved(module, name, buffer.detach().clone(), buffer._version)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and module.training
        ]

    def snapshot(self) -> None:
        """Remember the buffers as they are now."""
        for saved in self._saved:
            buffer = saved.current()
            if buffer is not None and buffer._version != saved.version:
                saved.copy = _copied(buffer, saved.copy)
                saved.version = buffer._version

    def restore(self) -> None:
        """Put back what the forward passes since the snapshot have written."""
        for saved in self._saved:
            buffer = saved.current()
            if buffer is not None and buffer._version != saved.version:
                buffer.data.copy_(saved.copy)

    def restore_where(self, found_inf: Tensor) -> None:
        """As `restore`, where `found_inf` (one element, on the device) is not zero."""
        is_skipped = found_inf.reshape(()).bool()
        for saved in self._saved:
            buffer = saved.current()
            if buffer is not None and buffer._version != saved.version:
                buffer.data.copy_(torch.where(is_skipped, saved.copy.to(buffer), buffer))


def _copied(buffer: Tensor, into: Tensor) -> Tensor:
    if into.shape == buffer.shape and into.dtype == buffer.dtype and into.device == buffer.device:
        return into.copy_(buffer.detach())
    return buffer.detach().clone()
