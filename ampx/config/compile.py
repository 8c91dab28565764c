"""Which parts of the step are compiled."""

from typing import Literal

from ampx.config.fields import Settings


class CompileSettings(Settings):
    kind: Literal["none"]
