"""Aids for finding a fault; a preset of this group may set other groups' values too."""

from typing import Annotated

from ampx.config.fields import UNHASHED, PositiveInt, Settings


class DebugSettings(Settings):
    profile: Annotated[bool, UNHASHED]
    anomaly: bool
    overfit_batches: PositiveInt | None
