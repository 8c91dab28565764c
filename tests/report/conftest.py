import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ampx.trial import Trial

CONFIG = """
seed: 1
model: {kind: resnet_small, width: 16}
data: {kind: digits, batch_size: 32}
scaler: {kind: dynamic, init_scale: 65536.0, growth_interval: 300}
optimizer: {kind: adamw, lr: 1.0e-05}
"""
MANIFEST = {
    "requested": {
        "name": "bf16",
        "compute_dtype": "bfloat16",
        "output_dtype": "bfloat16",
        "param_dtype": "float32",
        "islands": [],
        "scaler": {"kind": "dynamic", "enabled": "auto"},
        "kernels": "auto",
    },
    "effective": {
        "param_dtype": {"float32": 20},
        "compute_dtype": {"bfloat16": 12, "float32": 1},
        "output_dtype": ["float32"],
        "islands": [],
        "scaler": {"kind": "dynamic", "is_active": False},
        "kernels": "native",
        "ops": {f"op{number}": "bfloat16" for number in range(40)},
    },
    "environment": {"torch": "2.14.1", "device": "cpu", "threads": 2},
    "git": {"commit": "abc123"},
    "seed": 1,
    "notes": ["scaler inactive for bfloat16 (enabled=auto)"],
}
RESULT = {
    "metrics": {"accuracy": {"final": 0.975, "best": 0.978}},
    "steps": {"planned": 6, "attempted": 6, "applied": 5, "skipped": {"inf_grad": 1}},
    "scale": {"first": 65536.0, "last": 32768.0, "min": 32768.0, "max": 65536.0},
    "throughput": {"samples_per_s": 12345.6, "step_ms_median": 8.123},
    "memory": {"peak_bytes": 812 * 2**20},
    "train_s": 73.0,
    "wall_s": 83.0,
}


def step_records(num_steps: int, skipped: int) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "optimizer": "main",
            "loss": None if step == skipped else 2.0 - step / num_steps,
            "scale": 65536.0 if step <= skipped else 32768.0,
            "applied": step != skipped,
            "skip_reason": "inf_grad" if step == skipped else None,
        }
        for step in range(num_steps)
    ]


@pytest.fixture
def pending(tmp_path: Path) -> Trial:
    """A trial that has not started."""
    path = tmp_path / "sweep" / "trial"
    return Trial.create(path, config_text=CONFIG, overrides=["dtype=bf16", "+model.name='a b'"])


@pytest.fixture
def completed(pending: Trial) -> Trial:
    """A trial with everything in it."""
    pending.set_status("running")
    pending.append_json("steps.jsonl", step_records(6, skipped=3))
    pending.append_json("evals.jsonl", [{"step": 5, "accuracy": 0.975}])
    pending.event("skip", step=3, reason="inf_grad")
    pending.event("warning", message="float16 is slow here [native]", step=0)
    pending.write_json("manifest.json", MANIFEST)
    pending.write_json("result.json", RESULT)
    pending.set_status("completed")
    return pending


@pytest.fixture
def printed() -> Callable[..., str]:
    """What a report prints where there is no terminal."""

    def render(report: Callable[..., None], *arguments: object) -> str:
        file = io.StringIO()
        report(*arguments, Console(file=file, width=200, highlight=False))
        return file.getvalue()

    return render
