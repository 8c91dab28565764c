"""The CPU probe: agrees with the kernel's own list, with oneDNN and with a stopwatch."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ampx.numerics.isa import probe_cpu, warn_if_slower

CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(not CPUINFO.exists(), reason="only Linux lists its CPU flags")
@pytest.mark.parametrize("feature", ["f16c", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16"])
def test_features_are_those_the_kernel_lists(feature: str) -> None:
    assert (feature in probe_cpu().features) == (feature in CPUINFO.read_text().split())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_dtype_that_does_not_run_is_slower_than_float32_by_the_stopwatch(dtype: torch.dtype) -> None:
    """Breaks when the probe says yes to everything, or no."""
    runs = probe_cpu().runs_float16 if dtype is torch.float16 else probe_cpu().runs_bfloat16
    ratio = product_s(dtype) / product_s(torch.float32)
    assert ratio < 2 if runs else ratio > 2, f"{dtype} takes {ratio:.1f} times as long as float32"


def product_s(dtype: torch.dtype) -> float:
    matrix = torch.ones(384, 384, dtype=dtype)
    times: list[float] = []
    for _ in range(4):
        start = time.thread_time()
        matrix @ matrix
        times.append(time.thread_time() - start)
    return min(times)


def test_a_cpu_without_bfloat16_is_reported_as_such() -> None:
    """oneDNN held to AVX2 stands in for an older machine."""
    program = (
        "import torch; from ampx.numerics.isa import probe_cpu, warn_if_slower\n"
        "print(probe_cpu().runs_bfloat16)\n"
        "print(warn_if_slower(torch.bfloat16, device_type='cpu', kernels='native'))"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    runs_bfloat16, warning = done.stdout.splitlines()
    assert runs_bfloat16 == "False"
    assert "has no bfloat16 arithmetic" in warning
    assert "many times slower than with dtype=fp32" in warning


@pytest.mark.skipif(probe_cpu().runs_float16, reason="float16 is not slow on this CPU")
@pytest.mark.parametrize(("kernels", "cost"), [("native", "is many times slower"), ("fast", "is slower")])
def test_slow_float16_is_announced_in_one_line(kernels: str, cost: str) -> None:
    """BUGS 23: low precision on a CPU slower than float32, and nobody said so."""
    warning = warn_if_slower(torch.float16, device_type="cpu", kernels=kernels)
    assert warning is not None
    assert warning.startswith("dtype.compute_dtype=float16: ")
    assert cost in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("dtype", "device_type"), [(torch.float32, "cpu"), (torch.float16, "cuda"), (torch.bfloat16, "cuda")]
)
def test_nothing_is_announced_where_nothing_is_emulated(dtype: torch.dtype, device_type: str) -> None:
    assert warn_if_slower(dtype, device_type=device_type, kernels="native") is None
