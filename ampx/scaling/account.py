"""What one optimizer has done since the last `update()`, and what it may do next."""

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

NO_GRADIENT = (
    "none of the parameters has a gradient; call scaler.scale(loss).backward() on a loss that depends on"
    " them, or leave their optimizer out of this iteration"
)


class Stage(Enum):
    READY = 0
    UNSCALED = 1
    STEPPED = 2


@dataclass(slots=True)
class Account:
    """`found_inf` is None until the gradients were checked, and stays so if there are none."""

    stage: Stage = Stage.READY
    found_inf: Tensor | None = None
    amax: Tensor | None = None

    def check_may_unscale(self) -> None:
        if self.stage is Stage.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if self.stage is Stage.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")

    def check_may_step(self) -> None:
        if self.stage is Stage.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")

    def require_found_inf(self) -> Tensor:
        if self.found_inf is None:
            raise ValueError(f"No inf checks were recorded for this optimizer: {NO_GRADIENT}.")
        return self.found_inf
