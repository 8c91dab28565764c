"""What a trial does."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ampx.config.fields import Settings


class TrainJob(Settings):
    kind: Literal["train"]
    implementation: ClassVar[str] = "ampx.jobs.train.train"


class EvaluateJob(Settings):
    kind: Literal["evaluate"]
    implementation: ClassVar[str] = "ampx.jobs.evaluate.evaluate"


JobSettings = Annotated[TrainJob | EvaluateJob, Field(discriminator="kind")]
