import json
from pathlib import Path
from typing import Any

import pytest

from ampx.records import append_lines
from ampx.report import ledger as ledger_module
from ampx.report.ledger import read_ledger


def records(num_steps: int) -> list[dict[str, Any]]:
    """A skip every 97 steps quarters the scale, which doubles two steps later."""
    made: list[dict[str, Any]] = []
    scale = 1024.0
    for step in range(num_steps):
        is_skip = step % 97 == 96
        reason = "inf_grad" if is_skip else None
        for optimizer in ("generator", "discriminator"):
            made.append({"step": step, "optimizer": optimizer, "loss": float(step), "scale": scale})
            made[-1] |= {"applied": not is_skip, "skip_reason": reason}
        scale *= 0.25 if is_skip else 2.0 if step % 97 == 1 else 1.0
    return made


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_a_long_ledger_is_sampled_and_counted_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separators: tuple[str, str]
) -> None:
    """Broken by sampling the skips too, and by forgetting the step after a skip (the smallest scale)."""
    path = tmp_path / "steps.jsonl"
    append_lines(path, [json.dumps(record, separators=separators) for record in records(1000)])
    with path.open("a") as file:
        file.write('{"step": 1000, "applied": true, "lo')
    whole = read_ledger(path)
    monkeypatch.setattr(ledger_module, "_WHOLE_BYTES", 20_000)
    sampled = read_ledger(path)
    assert whole.num_records == len(whole.samples) == 2000
    assert len(sampled.samples) < 400
    assert (
        sampled.steps() == whole.steps() == {"attempted": 2000, "applied": 1980, "skipped": {"inf_grad": 20}}
    )
    assert sampled.scale() == whole.scale()
    assert whole.losses == [float(step) for step in range(1000)]
    assert sampled.losses == sorted(sampled.losses)  # pyright: ignore[reportArgumentType]


def test_no_ledger_is_an_empty_one(tmp_path: Path) -> None:
    ledger = read_ledger(tmp_path / "steps.jsonl")
    assert ledger.steps() == {"attempted": 0, "applied": 0, "skipped": {}}
    assert ledger.scale() == {}
    assert ledger.losses == ledger.log2_scales == []
