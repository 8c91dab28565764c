"""What was asked for and what really ran: `manifest.json`, written before and again after the first step."""

from pathlib import Path
from typing import Any

import torch

from ampx.fingerprint import fingerprints, targets_in
from ampx.jobs.context import JobContext
from ampx.numerics.isa import warn_if_slower
from ampx.training.assemble import TrainState
from ampx.training.environment import environment, git_state
from ampx.trial import Trial


def write_manifest(context: JobContext, precision: dict[str, Any]) -> None:
    """Replace the manifest; `precision` is `requested`, with `effective` and `notes` once they are known."""
    config = context.config
    context.trial.write_json(
        "manifest.json",
        {
            **precision,
            "environment": environment(context.device),
            "git": git_state(Path.cwd()),
            "sources": fingerprints(targets_in(config.model_dump(by_alias=True))),
            "seed": config.seed,
            "world_size": config.distribution.num_processes,
        },
    )


def use_recorded_threads(context: JobContext) -> None:
    """A trial goes on with as many threads as it began with: sums depend on how they are split."""
    recorded = _recorded_environment(context.trial).get("num_threads")
    if recorded is not None and recorded != torch.get_num_threads():
        context.tell("threads", recorded=recorded, found=torch.get_num_threads())
        torch.set_num_threads(recorded)


def exactness(trial: Trial, device: torch.device) -> str:
    """How a trial goes on from its checkpoint here: "bit for bit", or "to tolerance" with the reasons."""
    recorded, here = _recorded_environment(trial), environment(device)
    reasons = [
        f"{name} {recorded[name]} became {here[name]}"
        for name in ("torch", "device", "num_threads")
        if name in recorded and recorded[name] != here[name]
    ]
    if device.type == "cuda" and not here["deterministic"]:
        reasons.append("CUDA without deterministic=true")
    return f"to tolerance ({'; '.join(reasons)})" if reasons else "bit for bit"


def _recorded_environment(trial: Trial) -> dict[str, Any]:
    return (trial.read_json("manifest.json") or {}).get("environment", {})


def requested(state: TrainState) -> dict[str, Any]:
    """The precision as the config asks for it."""
    config = state.setup.config
    asked = config.dtype.model_dump(mode="json")
    return {
        "requested": {**asked, "scaler": config.scaler.model_dump(mode="json"), "gate": config.train.gate}
    }


def effective(state: TrainState, observed: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The precision as the first step showed it."""
    setup = state.setup
    return {
        "effective": {
            **observed,
            "scope": setup.policy.scope,
            "islands": setup.claims["islands"],
            "baseline": setup.claims["baseline"],
            "scaler": _scaler(state),
            "kernels": setup.kernels.name,
            "gate": state.stepper.gate.name,
        },
        "notes": [*notes, *precision_notes(state)],
    }


def _scaler(state: TrainState) -> dict[str, Any]:
    scaler = state.scaler
    return {
        "kind": state.setup.config.scaler.kind,
        "policy": str(scaler.policy) if scaler.is_enabled() else None,
        "is_active": scaler.is_enabled(),
        "scale": scaler.get_scale() if scaler.is_enabled() else None,
    }


def precision_notes(state: TrainState) -> list[str]:
    """What `auto` decided, in words; each is said once at the start and kept in the manifest."""
    config, setup = state.setup.config, state.setup
    slower = warn_if_slower(
        setup.policy.compute_dtype, device_type=setup.device.type, kernels=setup.kernels.name
    )
    notes = [slower] if slower else []
    if not state.scaler.is_enabled() and config.scaler.kind != "none":
        notes.append(
            f"scaler={config.scaler.kind} is inactive: dtype={config.dtype.name} needs no loss scaling; "
            "scaler.enabled=true forces it"
        )
    if config.dtype.scope == "forward_raw" and setup.policy.compute_dtype != torch.float32:
        notes.append(
            "dtype.scope=forward_raw: the loss sees raw low-precision outputs outside autocast, where "
            "float16 overflows above 65504; dtype.scope=forward_loss is safe"
        )
    return notes
