"""A model's weights on their own: loaded with a message that helps, exported to one file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn


def load_model(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load weights that must fit exactly; ValueError naming what does not."""
    own = model.state_dict()
    problems = [f"{name} is missing" for name in own if name not in weights]
    problems += [f"{name} is not in the model" for name in weights if name not in own]
    problems += [
        f"{name} is {tuple(weights[name].shape)}, the model wants {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if problems:
        shown = "; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" if len(problems) > 4 else "")
        raise ValueError(
            f"{source}: does not fit this model: {shown}; use the model settings it was trained with"
        )
    model.load_state_dict(dict(weights))


def trained_weights(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights that evaluation uses: averaged ones where the trial kept an EMA."""
    weights: dict[str, Tensor] = dict(checkpoint["model"])
    return weights | dict(checkpoint["ema"].get("averages", {}))


def export_weights(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write the trained weights to one safetensors file; tied ones stand there once for each name."""
    weights = {
        name: tensor.detach().clone().contiguous() for name, tensor in trained_weights(checkpoint).items()
    }
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        save_file(weights, temporary, metadata={"format": "pt", "step": str(_step(checkpoint))})
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{path}: cannot be written ({error}); choose a folder with space and rights"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _step(checkpoint: Mapping[str, Any]) -> int:
    return checkpoint["progress"]["step"]
