"""Keeps a skipped step from leaving NaN in BatchNorm's running statistics, or in any other buffer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


@dataclass(slots=True)
class _Saved:
    owner: nn.Module
    name: str
    copy: Tensor
    version: int

    @property
    def is_touched(self) -> bool:
        """Whether the buffer may differ from the copy; normalisation kernels write without a trace."""
        return isinstance(self.owner, _NormBase) or self.buffer._version != self.version

    @property
    def buffer(self) -> Tensor:
        buffer = self.owner._buffers[self.name]
        assert buffer is not None, f"buffer {self.name} was there at the start"
        return buffer


class BufferGuard:
    """One snapshot of the buffers per effective batch; a buffer nobody writes to is copied once, ever."""

    def __init__(self, model: nn.Module) -> None:
        self._saved = [
            _Saved(module, name, buffer.detach().clone(), buffer._version)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def snapshot(self) -> None:
        """Remember the buffers as they are now."""
        for saved in self._saved:
            if saved.is_touched:
                saved.copy.copy_(saved.buffer.detach())
                saved.version = saved.buffer._version

    def restore(self) -> None:
        """Put back what the forward passes since the snapshot have written."""
        for saved in self._saved:
            if saved.is_touched:
                saved.buffer.data.copy_(saved.copy)

    def restore_where(self, found_inf: Tensor) -> None:
        """As `restore`, where `found_inf` (one element, on the device) is not zero."""
        is_skipped = found_inf.reshape(()).bool()
        for saved in self._saved:
            if saved.is_touched:
                saved.buffer.data.copy_(torch.where(is_skipped, saved.copy, saved.buffer))
