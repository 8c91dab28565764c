"""What every settings class shares: numbers as people type them, dtypes by name, targets.

Torch-free, like all of `ampx.config`.
"""

import ast
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

DtypeName = Literal["float32", "bfloat16", "float16"]


class Unhashed:
    """Marks a setting that cannot change a trial's numbers, so its identity leaves it out."""


UNHASHED = Unhashed()


class Settings(BaseModel):
    """A frozen group of settings. The YAML under `conf/` holds every default, so none stands here."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def is_class_path(text: str) -> bool:
    """Whether `text` is a dotted path, such as my_pkg.Net, of at least two names."""
    names = text.split(".")
    return len(names) > 1 and all(name.isidentifier() for name in names)


def _class_path(text: str) -> str:
    if not is_class_path(text):
        raise ValueError("must be the dotted path of a class or function, such as my_pkg.Net")
    return text


ClassPath = Annotated[str, AfterValidator(_class_path)]


class CalledSettings(Settings):
    """A user's own class or function: a dotted path under `_target_`, its arguments beside it."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    target: ClassPath = Field(alias="_target_")

    @property
    def arguments(self) -> dict[str, Any]:
        """Everything that was typed beside `_target_`."""
        return dict(self.model_extra or {})


class TargetSettings(CalledSettings):
    """The option `custom` of a group: a user's own class or function instead of a built-in."""

    kind: Literal["custom"]


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def evaluate_number(text: str) -> float:
    """The value of arithmetic such as `2**16`, `1e-3` or `3*4`; ValueError for anything else."""
    try:
        return _evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ArithmeticError, MemoryError, RecursionError, TypeError):
        pass
    lowered = text.strip().lower().removeprefix("+")
    if lowered in ("inf", ".inf", "-inf", "-.inf"):
        return float(lowered.replace(".", ""))
    raise ValueError("is not a number; numbers may be typed as 300, 1e-3 or 2**16")


def _evaluate(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # pyright: ignore[reportReturnType]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _evaluate(node.left), _evaluate(node.right)
        if isinstance(node.op, ast.Pow) and (abs(left) > 2**32 or abs(right) > 1024):
            raise OverflowError  # 9**9**9 would hang the machine
        return _OPERATORS[type(node.op)](left, right)
    raise TypeError


def _parse_float(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("is true or false where a number is needed")
    if isinstance(value, str):
        value = evaluate_number(value)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("is not a number")
    return value


def _parse_int(value: object) -> object:
    value = _parse_float(value)
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError("is not a whole number")
        return int(value)
    return value


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


Int = Annotated[int, BeforeValidator(_parse_int)]
Float = Annotated[float, BeforeValidator(_parse_float)]
PositiveInt = Annotated[int, BeforeValidator(_parse_int), Field(ge=1)]
NonNegativeInt = Annotated[int, BeforeValidator(_parse_int), Field(ge=0)]
PositiveFloat = Annotated[float, BeforeValidator(_parse_float), Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, BeforeValidator(_parse_float), Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, BeforeValidator(_parse_float), Field(ge=0, le=1)]

Text = Annotated[str, Field(coerce_numbers_to_str=True)]
AbsolutePath = Annotated[Text, Field(min_length=1), AfterValidator(_absolute)]
