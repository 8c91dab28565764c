"""How exactly float32 is multiplied: set for products and convolutions alike, then measured.

Left alone, torch multiplies matrices in full float32 and lets cuDNN's convolutions round to TF32.
"""

from typing import NamedTuple

import torch

from ampx.config.dtype import MatmulPrecision

_FLOAT32_BITS = 24  # significant bits, the hidden one included


class Baseline(NamedTuple):
    """What was asked of float32 products, and the significant bits of an operand that they keep."""

    matmul_precision: MatmulPrecision
    significant_bits: int


def set_baseline(matmul_precision: MatmulPrecision, device_type: str) -> Baseline:
    """Set the process's float32 precision; ValueError where the device gives another than was asked for."""
    torch.set_float32_matmul_precision(matmul_precision)
    torch.backends.cudnn.allow_tf32 = matmul_precision != "highest"
    bits = significant_bits(device_type)
    if (matmul_precision == "highest") != (bits == _FLOAT32_BITS):
        way_out = "dtype.matmul_precision=high" if matmul_precision == "highest" else "dtype=fp32"
        raise ValueError(
            f"dtype.matmul_precision={matmul_precision}: on device={device_type} float32 products keep "
            f"{bits} of {_FLOAT32_BITS} bits, so the run would not be what its name says; "
            f"use {way_out} or another device"
        )
    return Baseline(matmul_precision, bits)


def significant_bits(device_type: str) -> int:
    """Bits of a float32 operand that its matrix product keeps: 24 in full, 11 in TF32, 8 in bfloat16."""
    exponents = torch.arange(_FLOAT32_BITS, device=device_type)
    values = 1 + torch.exp2(-exponents.float())  # the k-th needs k + 1 bits
    left = torch.ones(256, 256, device=device_type)  # a size at which the fast kernels are chosen
    left[:_FLOAT32_BITS] *= values[:, None]
    products = (left @ torch.eye(256, device=device_type))[:_FLOAT32_BITS, 0]
    return 1 + int(exponents[products == values].max())
