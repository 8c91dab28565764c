"""The `dtype` group: the formats that numbers are stored, computed and reduced in; where autocast ends."""

from typing import Annotated, Literal, cast, get_args

from pydantic import ValidationInfo, field_validator

from ampx.config.fields import UNHASHED, DtypeName, Settings

Scope = Literal["forward_loss", "forward_float", "forward_raw", "step"]
KernelChoice = Literal["native", "fast", "auto"]
MastersChoice = Literal["none", "float32"]
MatmulPrecision = Literal["highest", "high", "medium"]


class DtypeSettings(Settings):
    """A dtype that is null leaves what it would govern as it is."""

    name: Annotated[str, UNHASHED]
    compute_dtype: DtypeName
    param_dtype: DtypeName
    buffer_dtype: DtypeName | None
    reduce_dtype: DtypeName | None
    scope: Scope
    output_dtype: DtypeName | None
    islands: tuple[str, ...]
    cache_weights: bool
    kernels: KernelChoice
    masters: MastersChoice
    matmul_precision: MatmulPrecision

    @property
    def uses_float16(self) -> bool:
        """Whether anything is stored or computed in float16, whose smallest number is 6e-8."""
        islands = [dtype for _, dtype in map(parse_island, self.islands)]
        return "float16" in (self.compute_dtype, self.param_dtype, *islands)

    @field_validator("param_dtype")
    @classmethod
    def _is_float32_or_computed_in(cls, param_dtype: DtypeName, info: ValidationInfo) -> DtypeName:
        compute_dtype = info.data.get("compute_dtype", param_dtype)
        if param_dtype not in ("float32", compute_dtype):
            raise ValueError(
                f"must be float32 (autocast casts down from it) or dtype.compute_dtype={compute_dtype}; "
                f"set one of these, or dtype.compute_dtype={param_dtype}"
            )
        return param_dtype

    @field_validator("scope")
    @classmethod
    def _has_autocast(cls, scope: Scope, info: ValidationInfo) -> Scope:
        if scope != "forward_loss" and info.data.get("param_dtype") == info.data.get("compute_dtype"):
            raise ValueError(
                "says how far autocast reaches, and there is none while dtype.param_dtype equals "
                "dtype.compute_dtype; use dtype.scope=forward_loss, dtype=bf16 or dtype=fp16"
            )
        return scope

    @field_validator("output_dtype")
    @classmethod
    def _agrees_with_scope(cls, output_dtype: DtypeName | None, info: ValidationInfo) -> DtypeName | None:
        if output_dtype is not None and info.data.get("scope") in ("forward_float", "forward_raw"):
            raise ValueError(
                f"dtype.scope={info.data['scope']} already says what the loss gets; "
                "use dtype.output_dtype=null or dtype.scope=forward_loss"
            )
        return output_dtype

    @field_validator("islands")
    @classmethod
    def _are_patterns(cls, islands: tuple[str, ...]) -> tuple[str, ...]:
        for island in islands:
            parse_island(island)
        return islands

    @field_validator("masters")
    @classmethod
    def _are_wider_than_parameters(cls, masters: MastersChoice, info: ValidationInfo) -> MastersChoice:
        if masters == "float32" and info.data.get("param_dtype") == "float32":
            raise ValueError(
                "the parameters are float32 already (dtype.param_dtype); "
                "use dtype.masters=none, dtype=bf16_pure or dtype=fp16_pure"
            )
        return masters


def parse_island(island: str) -> tuple[str, DtypeName]:
    """A pattern and its dtype, float32 where none is named: `encoder.*.norm?:bfloat16`."""
    pattern, colon, dtype = island.partition(":")
    names = get_args(DtypeName)
    if not pattern or (colon and dtype not in names):
        raise ValueError(
            f"{island!r} must be a pattern over module or class names, with {', '.join(names)} after a colon "
            "where it is not float32; for example LayerNorm or encoder.*.norm?:float32"
        )
    return pattern, cast(DtypeName, dtype) if colon else "float32"
