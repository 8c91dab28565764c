"""From the `model` settings and the sizes of the data to a module."""

import inspect

from torch import nn

from ampx.build import build, field_arguments, import_target
from ampx.config.fields import TargetSettings
from ampx.config.model import BuiltinModelSettings, ModelSettings
from ampx.spec import DataSpec


def build_model(settings: ModelSettings, spec: DataSpec) -> nn.Module:
    """A built-in model gets its settings and the sizes it declares; a user's own only what was typed."""
    if isinstance(settings, TargetSettings):
        model = build(settings.target, settings.arguments, setting="model")
        typed = f"model._target_={settings.target}"
    else:
        model = _build_builtin(settings, spec)
        typed = f"model={settings.kind}"
    if not isinstance(model, nn.Module):
        raise ValueError(f"{typed}: gave a {type(model).__name__}; it must be or return a torch.nn.Module")
    return model


def _build_builtin(settings: BuiltinModelSettings, spec: DataSpec) -> object:
    implementation = import_target(settings.implementation)
    arguments, sizes = field_arguments(settings), spec.sizes()
    needed = [name for name in inspect.signature(implementation).parameters if name not in arguments]
    unknown = [name for name in needed if name not in sizes]
    if unknown:
        raise ValueError(
            f"model={settings.kind}: needs {', '.join(unknown)}, but the data give "
            f"{', '.join(sizes) or 'no sizes'}; choose data that give it (data=text has a vocabulary, "
            "the others images of classes), or another model"
        )
    return implementation(**arguments, **{name: sizes[name] for name in needed})
