"""Dtypes in words."""

import torch


def dtype_name(dtype: torch.dtype) -> str:
    """As settings and records name it: `bfloat16` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")
