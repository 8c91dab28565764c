"""The experiment config: the whole resolved, validated, frozen configuration of one trial."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ampx.config.compile import CompileSettings
from ampx.config.data import DataSettings
from ampx.config.debug import DebugSettings
from ampx.config.distribution import DistributionSettings
from ampx.config.dtype import DtypeSettings
from ampx.config.fields import UNHASHED, AbsolutePath, NonNegativeInt, Settings, Text
from ampx.config.job import JobSettings
from ampx.config.launcher import LauncherSettings
from ampx.config.model import ModelSettings
from ampx.config.observe import ObserveSettings
from ampx.config.optimizer import OptimizerSettings
from ampx.config.quantize import QuantizeSettings
from ampx.config.scaler import ScalerSettings
from ampx.config.schedule import ScheduleSettings
from ampx.config.task import TaskSettings
from ampx.config.tracker import TrackerSettings
from ampx.config.train import TrainSettings


def _directory_name(name: str) -> str:
    if name.startswith((".", "-")) or any(mark in name for mark in "/\\=\0"):
        raise ValueError("names a directory: it may not start with . or - nor hold / \\ =")
    return name


DirectoryName = Annotated[Text, Field(min_length=1, max_length=100), AfterValidator(_directory_name)]
Seed = Annotated[NonNegativeInt, Field(le=2**32 - 1)]  # NumPy takes no more


class ExperimentConfig(Settings):
    """In the order of `conf/config.yaml`. Paths become absolute here, where the user's directory is known."""

    seed: Seed
    name: Annotated[DirectoryName | None, UNHASHED]
    out: Annotated[AbsolutePath, UNHASHED]
    tags: Annotated[tuple[Text, ...], UNHASHED]
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], UNHASHED]  # the device found is hashed instead
    deterministic: bool
    resume: AbsolutePath | None
    checkpoint: AbsolutePath | None
    train: TrainSettings
    job: JobSettings
    model: ModelSettings
    data: DataSettings
    task: TaskSettings
    dtype: DtypeSettings
    scaler: ScalerSettings
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    distribution: DistributionSettings
    compile: CompileSettings
    quantize: QuantizeSettings
    observe: Annotated[ObserveSettings, UNHASHED]
    tracker: Annotated[TrackerSettings, UNHASHED]
    launcher: Annotated[LauncherSettings, UNHASHED]
    debug: DebugSettings


def scaler_is_active(config: ExperimentConfig) -> bool:
    """Whether this trial scales its losses."""
    enabled = config.scaler.enabled
    return config.dtype.uses_float16 if enabled == "auto" else enabled
