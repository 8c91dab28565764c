"""Any classification model of torchvision, by name; its weights come from this machine or not at all.

torchvision is imported when a model is built and not before: it takes more than a second.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from ampx.config.suggest import did_you_mean, nearest


def torchvision_model(
    *, name: str, weights: str | None, in_channels: int, image_size: int, num_classes: int
) -> nn.Module:
    """The model `name` for this data; `weights` is an entry of its weights enum, or a file.

    GoogLeNet and Inception come without auxiliary heads, which need large images and losses of their own.
    """
    _check_name(name)
    _check_images(name, in_channels, image_size)
    state = None if weights is None else _read(_file_of(name, weights), weights)
    model = _construct(name, image_size, num_classes)
    if state is not None:
        _load(model, state, typed=f"model.weights={weights}", num_classes=num_classes)
    return model


def _check_name(name: str) -> None:
    from torchvision import models

    known = models.list_models(module=models)
    if name in known:
        return
    if name in models.list_models():
        raise ValueError(
            f"model.name={name}: is no classification model; choose one, such as resnet50 or vit_b_16"
        )
    hint = did_you_mean(nearest(name, known)) or "; torchvision.models.list_models() has the names"
    raise ValueError(f"model.name={name}: torchvision has no such model{hint}")


def _check_images(name: str, in_channels: int, image_size: int) -> None:
    from torchvision.models import get_model_weights

    if in_channels != 3:
        raise ValueError(
            f"model.name={name}: torchvision's models take 3 channels, but the data have {in_channels}; "
            "choose data of colour images, or a model such as resnet_small"
        )
    smallest = next(iter(get_model_weights(name))).meta["min_size"][0]
    if image_size < smallest and _family(name) not in _ANY_SIZE:
        raise ValueError(
            f"data.image_size={image_size}: model.name={name} needs at least {smallest}; "
            f"set data.image_size={smallest} or more, or choose another model"
        )


def _construct(name: str, image_size: int, num_classes: int) -> nn.Module:
    from torchvision.models import get_model

    try:
        return get_model(name, num_classes=num_classes, **_special_arguments(name, image_size))
    except (AssertionError, ValueError) as error:
        raise ValueError(
            f"data.image_size={image_size}: model.name={name} cannot be built for it ({error}); "
            "224 suits every model"
        ) from error


# Their weights were trained at the size that torchvision calls the smallest; the models take any they divide.
_ANY_SIZE = ("vit", "maxvit", "swin")


def _special_arguments(name: str, image_size: int) -> dict[str, Any]:
    # What transform_input does to the input is what the published weights of these two expect.
    without_auxiliary = {"aux_logits": False, "init_weights": True, "transform_input": True}
    return {
        "vit": {"image_size": image_size},
        "maxvit": {"input_size": (image_size, image_size)},
        "googlenet": without_auxiliary,
        "inception": without_auxiliary,
    }.get(_family(name), {})


def _family(name: str) -> str:
    return name.partition("_")[0]


def _file_of(name: str, weights: str) -> Path:
    from torchvision.models import get_model_weights

    entries = {entry.name: entry for entry in get_model_weights(name) if entry.meta["categories"]}
    if weights in entries:
        url = entries[weights].url
        cached = Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name
        if cached.is_file():
            return cached
        raise ValueError(
            f"model.weights={weights}: is not on this machine, and ampx downloads no weights; "
            f"fetch {url} to {cached}"
        )
    file = Path(weights).expanduser()
    if file.is_file():
        return file
    hint = did_you_mean(nearest(weights, entries)) or f"; {name} has {', '.join(entries)}"
    raise ValueError(f"model.weights={weights}: is neither a file nor weights of {name}{hint}")


def _read(file: Path, weights: str) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            state: dict[str, Any] = load_file(file)
        else:
            state = dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # each format has its own ways to be broken
        raise ValueError(
            f"model.weights={weights}: {file} must be a state dict that can be read without running "
            "pickled code; give a file written by torch.save(model.state_dict(), …) or by safetensors"
        ) from error
    state = state.get("model", state)  # as torchvision's training script nests it
    return {_renamed(key): tensor for key, tensor in state.items() if not key.startswith(_AUXILIARY_HEADS)}


_AUXILIARY_HEADS = ("aux1.", "aux2.", "AuxLogits.")


def _renamed(key: str) -> str:
    # torchvision's published DenseNets write norm.1 for norm1.
    return re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", key)


def _load(model: nn.Module, state: dict[str, Tensor], *, typed: str, num_classes: int) -> None:
    own = model.state_dict()
    heads = [
        key
        for key in own.keys() & state.keys()
        if own[key].shape[:1] == (num_classes,) and state[key].shape[:1] != (num_classes,)
    ]
    try:
        result = model.load_state_dict({k: v for k, v in state.items() if k not in heads}, strict=False)
    except RuntimeError as error:
        raise ValueError(f"{typed}: does not fit this model and data.image_size; {error}") from error
    strays = sorted({*result.missing_keys, *result.unexpected_keys} - set(heads))
    if strays:
        raise ValueError(
            f"{typed}: is not of this model: {', '.join(strays[:5])} are only in one; give its own weights"
        )
    if heads:
        warnings.warn(
            f"{typed}: has not the data's {num_classes} classes; {', '.join(sorted(heads))} start afresh",
            stacklevel=2,
        )
