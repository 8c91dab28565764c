"""How long to train, and what happens around the steps."""

from typing import Annotated, Literal

from pydantic import Field

from ampx.config.fields import UNHASHED, NonNegativeFloat, PositiveFloat, PositiveInt, Settings

EmaDecay = Annotated[PositiveFloat, Field(lt=1)]


class EarlyStopSettings(Settings):
    """Stops after `patience` evaluations in a row that did not improve `metric` by `min_delta`."""

    metric: str | None
    mode: Literal["min", "max"] | None
    patience: PositiveInt | None
    min_delta: NonNegativeFloat


class TrainSettings(Settings):
    """`max_steps` and every `*_every` count attempted steps."""

    max_epochs: PositiveInt | None
    max_steps: PositiveInt | None
    max_time_s: PositiveFloat | None
    grad_accumulation: PositiveInt
    clip_norm: PositiveFloat | None
    eval_every: PositiveInt | None
    checkpoint_every: Annotated[PositiveInt | None, UNHASHED]
    log_every: Annotated[PositiveInt, UNHASHED]
    limit_batches: PositiveInt | None
    early_stop: EarlyStopSettings
    gate: Literal["host", "device", "auto"]
    ema_decay: EmaDecay | None
    channels_last: bool
    activation_checkpointing: bool

    @property
    def has_horizon(self) -> bool:
        """Whether the number of steps is known before the run starts."""
        return self.max_epochs is not None or self.max_steps is not None
