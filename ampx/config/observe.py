"""What is measured inside the model while it trains."""

from typing import Literal

from ampx.config.fields import Settings


class ObserveSettings(Settings):
    kind: Literal["none"]
