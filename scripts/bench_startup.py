"""Start-up of the main job, against importing torch, building the same model by hand and stepping once.

    python scripts/bench_startup.py [--pairs 5] [--json FILE]

Start-up is the wall time of the whole process less the time in the training loop. Every number is a fresh
process; the two arms alternate.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BY_HAND = """
import torch
from torch import nn
from ampx.models.resnet_small import ResNetSmall
model = ResNetSmall(width={width}, blocks={blocks}, in_channels=1, num_classes=10)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
with torch.autocast("cpu", torch.bfloat16):
    loss = nn.functional.cross_entropy(model(torch.rand(64, 1, 8, 8)), torch.randint(10, (64,)))
loss.backward()
optimizer.step()
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    main_job()  # warms the page cache
    by_hand = BY_HAND.format(**model_settings())
    pairs = [(main_job(), wall_s([sys.executable, "-c", by_hand])) for _ in range(arguments.pairs)]
    row = {
        "main_job_startup_s": statistics.median(ours for ours, _ in pairs),
        "by_hand_s": statistics.median(theirs for _, theirs in pairs),
        "ratio": statistics.median(ours / theirs for ours, theirs in pairs),
    }
    print(f"start-up of the main job {row['main_job_startup_s']:.2f} s, by hand {row['by_hand_s']:.2f} s")
    print(f"ratio {row['ratio']:.3f} (median of {len(pairs)} pairs)")
    if arguments.json:
        arguments.json.write_text(json.dumps(row))


def main_job() -> float:
    """Seconds that one main job, cut to 200 steps, spends outside its loop."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ampx.run", f"out={folder}", "train.max_steps=200"]
        wall = wall_s(command)
        result = json.loads(next(Path(folder).glob("*/*/result.json")).read_text())
    return wall - result["train_s"]


def wall_s(command: list[str]) -> float:
    """Wall time of a process from start to end."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def model_settings() -> dict[str, object]:
    """The main job's own model settings."""
    shown = subprocess.run(
        [sys.executable, "-m", "ampx.run", "--cfg", "job", "--package", "model"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    from omegaconf import OmegaConf

    settings = OmegaConf.to_container(OmegaConf.create(shown.stdout.replace("# @package model", "")))
    assert isinstance(settings, dict)
    return {"width": settings["width"], "blocks": settings["blocks"]}


if __name__ == "__main__":
    main()
