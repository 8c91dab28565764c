"""What this CPU can compute in float16 and bfloat16, as torch and oneDNN see it.

It answers two questions: whether `dtype.kernels=auto` needs the fast kernels, and whether a low-precision
trial will be slower here than a float32 one. GPUs are left to torch.
"""

import platform
from dataclasses import dataclass

import torch

from ampx.numerics.dtypes import dtype_name

_LOW_PRECISION_FEATURES = (
    *("f16c", "avx_ne_convert", "avx512_bf16", "avx512_fp16", "avx10_2", "amx_bf16", "amx_fp16"),
    *("fp16_arith", "bf16", "sve_bf16"),  # Arm
)
_BFLOAT16_ARITHMETIC = {"avx512_bf16", "avx10_2", "amx_bf16", "bf16", "sve_bf16"}


@dataclass(frozen=True, slots=True)
class CpuIsa:
    """The low-precision side of a CPU's instruction set, ready for the manifest.

    `runs_float16` and `runs_bfloat16` say that matrix products and convolutions run at speed in that
    dtype. Where they do not, torch emulates: 2 to 100 times slower than float32.
    """

    name: str
    features: tuple[str, ...]
    runs_float16: bool
    runs_bfloat16: bool


def probe_cpu() -> CpuIsa:
    """Read this machine's CPU. Whatever torch cannot detect counts as absent."""
    capabilities = torch.cpu.get_capabilities()
    features = tuple(name for name in _LOW_PRECISION_FEATURES if capabilities.get(name))
    onednn = torch.ops.mkldnn if torch.backends.mkldnn.is_available() else None
    return CpuIsa(
        name=capabilities.get("cpu_name") or platform.processor() or platform.machine(),
        features=features,
        # oneDNN's own answer on x86 (it honours ONEDNN_MAX_CPU_ISA); on Arm torch has kernels of its own
        runs_float16="fp16_arith" in features or bool(onednn and onednn._is_mkldnn_fp16_supported()),
        runs_bfloat16=not _BFLOAT16_ARITHMETIC.isdisjoint(features)
        and bool(onednn and onednn._is_mkldnn_bf16_supported()),
    )


def warn_if_slower(compute_dtype: torch.dtype, *, device_type: str, kernels: str) -> str | None:
    """One line for the user if `compute_dtype` will train slower than float32 on this CPU, else None.

    `kernels` is the name of the kernels that will run, `native` or `fast`.
    """
    if device_type != "cpu" or compute_dtype not in (torch.float16, torch.bfloat16):
        return None
    cpu = probe_cpu()
    if cpu.runs_bfloat16 if compute_dtype is torch.bfloat16 else cpu.runs_float16:
        return None
    dtype = dtype_name(compute_dtype)
    cost = "slower" if kernels == "fast" else "many times slower"
    return (
        f"dtype.compute_dtype={dtype}: this CPU ({cpu.name}) has no {dtype} arithmetic, so training is "
        f"{cost} than with dtype=fp32; it shows the numerics of {dtype}, not its speed"
    )
