"""How many ranks share one trial, and how."""

from typing import Literal

from ampx.config.fields import Settings


class DistributionSettings(Settings):
    kind: Literal["none"]

    @property
    def num_processes(self) -> int:
        """The number of ranks of one trial, on all hosts together."""
        return 1
