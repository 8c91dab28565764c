"""The `task` group: what a step computes, and what evaluation reports."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ampx.config.fields import Float, PositiveInt, Settings, TargetSettings


class ClassificationSettings(Settings):
    implementation: ClassVar[str] = "ampx.tasks.classification.Classification"
    kind: Literal["classification"]
    label_smoothing: Annotated[Float, Field(ge=0, lt=1)]
    top_k: PositiveInt


class LanguageModelingSettings(Settings):
    implementation: ClassVar[str] = "ampx.tasks.language_modeling.LanguageModeling"
    kind: Literal["language_modeling"]


BuiltinTaskSettings = ClassificationSettings | LanguageModelingSettings
TaskSettings = Annotated[BuiltinTaskSettings | TargetSettings, Field(discriminator="kind")]
