"""Quantisation-aware training and float8."""

from typing import Literal

from ampx.config.fields import Settings


class QuantizeSettings(Settings):
    kind: Literal["none"]
