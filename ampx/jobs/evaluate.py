"""The job `evaluate`: a trained model, measured on the validation split under this config's precision."""

import time
from pathlib import Path

from ampx.jobs.context import JobContext, Outcome
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
    load_model(setup.model, trained_weights(load_checkpoint(path)), f"checkpoint={path}")
    started = time.perf_counter()
    with setup.kernels.installed():
        metrics = measure(setup, NoEma())
    for tracker in context.trackers:
        tracker.on_evaluation(0, metrics)
    return Outcome(
        "completed",
        f"evaluated {path}",
        {
            "metrics": {name: {"final": value, "best": value} for name, value in metrics.items()},
            "steps": {"attempted": 0, "applied": 0, "skipped": {}},
            "throughput": {"samples_per_s": None, "step_ms_median": None},
            "evaluation_s": time.perf_counter() - started,
            "memory": peak_memory(context.device),
        },
    )
