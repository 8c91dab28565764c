"""`dtype.kernels`: which float16 kernels a CPU trial runs, torch's own or the fast ones."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from ampx.config.dtype import KernelChoice
from ampx.numerics.fast_float16 import fast_float16
from ampx.numerics.isa import probe_cpu


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that were chosen; `name` is what the manifest reports."""

    name: Literal["native", "fast"]

    @contextmanager
    def installed(self) -> Generator[None]:
        """Run these kernels in the whole process for as long as the block lasts: wrap the trial in it.

        Compiled code stays valid across the border, either way: it reaches the kernels by dispatch.
        """
        if self.name == "native":
            yield
            return
        with fast_float16():
            yield


def choose_kernels(setting: KernelChoice, *, uses_float16: bool, device_type: str) -> Kernels:
    """Resolve `dtype.kernels`: `auto` is fast exactly where float16 meets a CPU without its arithmetic.

    Raises ValueError for `fast` on any other device; that it needs float16 is the config's own rule.
    """
    if setting == "auto":
        is_slow = uses_float16 and device_type == "cpu" and not probe_cpu().runs_float16
        return Kernels("fast" if is_slow else "native")
    if setting == "fast" and device_type != "cpu":
        raise ValueError(
            f"dtype.kernels=fast on device={device_type}: the fast kernels stand in for the float16 "
            "arithmetic that a CPU lacks; use dtype.kernels=auto, or device=cpu"
        )
    return Kernels(setting)
