"""Keeps a skipped step from leaving NaN in BatchNorm's running statistics, or in any other buffer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


@dataclass(slots=True)
class _Saved:
    owner: nn.Module
    name: str
    seen: Tensor
    version: int
    copy: Tensor

    @property
    def buffer(self) -> Tensor:
        buffer = self.owner._buffers[self.name]
        assert buffer is not None, f"buffer {self.name} was there at the start"
        return buffer

    @property
    def is_touched(self) -> bool:
        """Whether the buffer may differ from the copy; normalisation kernels write without a trace."""
        buffer = self.buffer
        return isinstance(self.owner, _NormBase) or buffer is not self.seen or buffer._version != self.version

    def remember(self) -> None:
        buffer = self.buffer
        if buffer.shape == self.copy.shape:
            self.copy.copy_(buffer.detach())
        else:
            self.copy = buffer.detach().clone()
        self.seen, self.version = buffer, buffer._version

    def put_back(self, value: Tensor) -> None:
        """The forward may have put a new tensor in the buffer's place: then the old one returns to it."""
        with torch.no_grad():
            self.seen.copy_(value)
        self.owner._buffers[self.name] = self.seen


class BufferGuard:
    """One snapshot of the buffers per effective batch; a buffer nobody writes to is copied once, ever."""

    def __init__(self, model: nn.Module) -> None:
        self._saved = [
            _Saved(module, name, buffer, buffer._version, buffer.detach().clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]

    def snapshot(self) -> None:
        """Remember the buffers as they are now."""
        for saved in self._saved:
            if saved.is_touched:
                saved.remember()

    def restore(self) -> None:
        """Put back what the forward passes since the snapshot have written."""
        for saved in self._saved:
            if saved.is_touched:
                saved.put_back(saved.copy)

    def restore_where(self, found_inf: Tensor) -> None:
        """As `restore`, where `found_inf` (one element, on the device) is not zero."""
        is_skipped = found_inf.reshape(()).bool()
        for saved in self._saved:
            if saved.is_touched and saved.buffer.shape == saved.copy.shape:
                saved.put_back(torch.where(is_skipped, saved.copy, saved.buffer.detach()))
