"""The job `evaluate`: a trained model, measured on the validation split under this config's precision."""

import time
from pathlib import Path
from typing import Any

from ampx.jobs.context import JobContext, Outcome
from ampx.jobs.manifest import write_manifest
from ampx.training.assemble import assemble_setup
from ampx.training.checkpoint import find_checkpoint, load_checkpoint
from ampx.training.ema import NoEma
from ampx.training.evaluate import evaluate as measure
from ampx.training.memory import peak_memory
from ampx.training.weights import load_model, trained_weights


def evaluate(context: JobContext) -> Outcome:
    """Measure `checkpoint`; its averaged weights are the ones that count where it has them."""
    config = context.config
    assert config.checkpoint is not None, "a rule refuses job=evaluate without checkpoint"
    path = find_checkpoint(Path(config.checkpoint))
    setup = assemble_setup(config, context.device)
    checkpoint = load_checkpoint(path)
    load_model(setup.model, trained_weights(checkpoint), f"checkpoint={path}")
    notes = _differences(checkpoint.get("precision", {}), config.dtype.model_dump(mode="json"))
    for note in notes:
        context.note(note)
    started = time.perf_counter()
    with setup.kernels.installed():
        metrics = measure(setup, NoEma())
    asked = {"requested": config.dtype.model_dump(mode="json")}
    effective = {"kernels": setup.kernels.name, **setup.claims}
    write_manifest(context, {**asked, "effective": effective, "notes": notes})
    for tracker in context.trackers:
        tracker.on_evaluation(checkpoint["progress"]["step"], metrics)
    context.report(
        {
            "metrics": {name: {"final": value, "best": value} for name, value in metrics.items()},
            "steps": {"attempted": 0, "applied": 0, "skipped": {}},
            "throughput": {"samples_per_s": None, "step_ms_median": None},
            "evaluation_s": time.perf_counter() - started,
            "memory": peak_memory(context.device),
        }
    )
    return Outcome("completed", f"evaluated {path}")


def _differences(trained: dict[str, Any], evaluated: dict[str, Any]) -> list[str]:
    """Evaluation under another precision than training is allowed, and told."""
    names = [name for name in trained if name != "name" and trained[name] != evaluated.get(name)]
    if not names:
        return []
    pairs = ", ".join(f"dtype.{name}={evaluated.get(name)} (trained with {trained[name]})" for name in names)
    return [f"evaluated under another precision than it was trained in: {pairs}"]
