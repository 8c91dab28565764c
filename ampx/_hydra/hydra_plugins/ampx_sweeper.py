"""Replaces Hydra's basic sweeper and its launcher: composes every trial and starts none.

`ampx.run` hands all trials to ampx's own launch, once each has been validated.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ampx._hydra.sweep import Sweep
from ampx.config.errors import ConfigError


class AmpxSweeper(Sweeper):
    """`params` are overrides that a preset sweeps over, as `{scaler.growth_interval: "100,1000"}`."""

    def __init__(self, params: Mapping[str, object] | None = None) -> None:
        self.params = params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.loader = hydra_context.config_loader
        self.task_function = task_function
        self.master = config

    def sweep(self, arguments: list[str]) -> None:
        overrides = [*(f"{key}={value}" for key, value in self.params.items()), *arguments]
        sweep = Sweep(self.loader, overrides, self.master.hydra.overrides.hydra)
        composed = sweep.compose(self.master)
        for trial in sweep.trials:
            with _named(trial):
                self.task_function(next(composed))


@contextmanager
def _named(trial: Sequence[str]) -> Generator[None]:
    """An error within says which of the combinations is wrong."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"the trial {' '.join(trial)} is impossible:", *error.problems) from error
