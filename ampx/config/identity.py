"""Which trial a config is: a hash of everything that can change its numbers, and a name to find it by."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ampx.config.experiment import ExperimentConfig, scaler_is_active
from ampx.config.fields import UNHASHED
from ampx.names import safe_name

_SHORT = 8
_SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def identity(config: ExperimentConfig, device_kind: str, num_processes: int) -> str:
    """Hex SHA-256 of the settings that affect numbers, on this kind of device with this world size.

    Left out are settings marked UNHASHED and, where the scaler is inactive, its scale policy.
    """
    hashed = _hashed(config) | {"device": device_kind, "num_processes": num_processes}
    if not scaler_is_active(config):
        hashed["scaler"] = {"abort_after_skips": config.scaler.abort_after_skips}
    canonical = json.dumps(hashed, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def short_identity(digest: str) -> str:
    """As much of an identity as a name needs."""
    return digest[:_SHORT]


def trial_name(config: ExperimentConfig, digest: str) -> str:
    """Such as `resnet_small-digits-bf16-3f2a9c11`: a directory name that says what was trained on what."""
    parts = [_shown(config.model), _shown(config.data), _precision(config), short_identity(digest)]
    return safe_name("-".join(parts))


def _hashed(value: Any) -> Any:
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        names = [name for name, field in fields if UNHASHED not in field.metadata]
        return {name: _hashed(getattr(value, name)) for name in (*names, *(value.model_extra or {}))}
    if isinstance(value, Mapping):
        return {str(name): _hashed(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hashed(item) for item in value]
    return value


def _shown(settings: Any) -> str:
    """A built-in's own name or kind; of a user's target the last word."""
    if settings.kind == "custom":
        return settings.target.rpartition(".")[2]
    return getattr(settings, "name", settings.kind)


def _precision(config: ExperimentConfig) -> str:
    dtype = config.dtype
    if dtype.compute_dtype == "float32":
        return "fp32" if dtype.matmul_precision == "highest" else "tf32"
    is_pure = dtype.param_dtype == dtype.compute_dtype
    return _SHORT_DTYPES[dtype.compute_dtype] + ("_pure" if is_pure else "")
