from collections.abc import Iterator

import pytest
import torch

from ampx.numerics.baseline import set_baseline, significant_bits


@pytest.fixture(autouse=True)
def restored_precision() -> Iterator[None]:
    precision, allow_tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = allow_tf32


def test_highest_means_all_bits_and_no_tf32_in_convolutions_either() -> None:
    """INVARIANTS 29: torch's own default leaves cuDNN's convolutions at TF32."""
    torch.backends.cudnn.allow_tf32 = True
    baseline = set_baseline("highest", "cpu")
    assert baseline._asdict() == {"matmul_precision": "highest", "significant_bits": 24}
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cudnn.allow_tf32 is False


def test_a_precision_that_the_device_does_not_have_is_refused() -> None:
    """BUGS 20: TF32 asked of a processor that multiplies in full would only be another name for fp32."""
    torch.set_float32_matmul_precision("high")
    if significant_bits("cpu") < 24:
        pytest.skip("this processor multiplies in TF32")
    with pytest.raises(ValueError, match=r"matmul_precision=high: .* 24 of 24 bits.*; use dtype=fp32 or"):
        set_baseline("high", "cpu")


@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11), (torch.float32, 24)])
def test_the_bits_that_a_product_keeps_are_counted(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bits: int
) -> None:
    """Stands in for devices that round float32 operands: bfloat16, and TF32 with its 11 bits."""
    exact = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: exact(a.to(dtype).float(), b))
    assert significant_bits("cpu") == bits
