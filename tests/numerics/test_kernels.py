"""Choosing the float16 kernels, and having them only for as long as asked."""

import subprocess
import sys
from typing import Literal

import pytest
import torch

from ampx.numerics.isa import probe_cpu
from ampx.numerics.kernels import Kernels, choose_kernels


def test_auto_is_native_where_there_is_no_float16() -> None:
    assert choose_kernels("auto", uses_float16=False, device_type="cpu").name == "native"


def test_auto_is_native_on_a_gpu() -> None:
    assert choose_kernels("auto", uses_float16=True, device_type="cuda").name == "native"


def test_auto_is_fast_for_float16_on_a_cpu_without_its_arithmetic() -> None:
    name = choose_kernels("auto", uses_float16=True, device_type="cpu").name
    assert name == ("native" if probe_cpu().runs_float16 else "fast")


@pytest.mark.parametrize("setting", ["native", "fast"])
def test_an_explicit_setting_is_what_runs(setting: Literal["native", "fast"]) -> None:
    assert choose_kernels(setting, uses_float16=True, device_type="cpu").name == setting


def test_fast_is_refused_on_a_gpu() -> None:
    with pytest.raises(ValueError, match=r"dtype\.kernels=fast on device=cuda: .*use dtype\.kernels=auto"):
        choose_kernels("fast", uses_float16=True, device_type="cuda")


def registered(operator: str) -> str:
    """Every kernel torch has for `operator`, and where it came from."""
    return torch._C._dispatch_dump(f"aten::{operator}")


def test_native_kernels_leave_torch_as_it_is() -> None:
    before = registered("mm")
    with Kernels("native").installed():
        assert registered("mm") == before


@pytest.mark.parametrize("operator", ["mm", "addmm.out", "baddbmm_", "convolution", "convolution_backward"])
def test_fast_kernels_leave_no_trace(operator: str) -> None:
    """Breaks when the library of replacements outlives the block."""
    before = registered(operator)
    with Kernels("fast").installed():
        assert registered(operator) != before
    assert registered(operator) == before


def test_fast_kernels_leave_with_a_trial_that_died() -> None:
    before = registered("mm")
    with pytest.raises(KeyError), Kernels("fast").installed():
        raise KeyError
    assert registered("mm") == before


def test_fast_kernels_can_be_installed_again() -> None:
    half = torch.full((4, 4), 2.0, dtype=torch.float16)
    for _ in range(2):
        with Kernels("fast").installed():
            assert torch.equal(half @ half, torch.full_like(half, 16.0))


def test_fast_kernels_do_not_wake_the_compiler() -> None:
    """Importing `torch._dynamo` costs a second that an eager trial need not pay."""
    program = (
        "import sys, torch; from ampx.numerics.kernels import Kernels\n"
        "with Kernels('fast').installed(): torch.ones(2, 2).half() @ torch.ones(2, 2).half()\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
