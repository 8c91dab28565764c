"""Which device a setting means, and what is said where it is not there."""

import subprocess
import sys

import pytest
import torch

from ampx.device import find_device


def test_the_cpu_is_always_there() -> None:
    assert find_device("cpu") == torch.device("cpu")


def test_auto_takes_an_accelerator_before_the_cpu() -> None:
    expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert find_device("auto").type == expected


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_a_device_that_is_missing_is_refused_and_never_replaced(kind: str) -> None:
    """BUGS 20. Red when the CPU quietly takes over."""
    if find_device("auto").type == kind:
        pytest.skip(f"this machine has {kind}")
    with pytest.raises(
        ValueError, match=rf"device={kind}: torch .* finds none here, only .*; use device=auto"
    ):
        find_device(kind)


def test_importing_the_module_imports_no_torch() -> None:
    code = "import sys, ampx.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
