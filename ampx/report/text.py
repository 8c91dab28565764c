"""Numbers, curves and strange strings as short text for a terminal."""

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

_BLOCKS = "▁▂▃▄▅▆▇█"
_BARE_IN_HYDRA = re.compile(r"[\w/.+@-]+", re.ASCII)


def printable(value: object) -> str:
    """`value` on one line, with nothing in it that a terminal would obey."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))


def number(value: object) -> str:
    """Four digits of a float, an integer in full, true and false as in YAML, a dash for nothing."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return printable(value)
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"


def quantity(name: str, value: object) -> str:
    """A value in the unit that its name ends in."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return number(value)
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return duration(value)
    return number(value)


def is_tally(value: object) -> bool:
    """Whether it counts things by name, as `{"bfloat16": 12, "float32": 1}` does."""
    return isinstance(value, dict) and all(type(count) is int for count in value.values())


def tally(value: object) -> str:
    """The names in a tally or a list, with counts where there are several; any other value as a number."""
    if isinstance(value, dict):
        counts = (f"{printable(name)} x{count}" for name, count in value.items())
        return ", ".join(counts) if len(value) > 1 else printable("".join(value) or "none")
    if isinstance(value, list):
        return ", ".join(number(item) for item in value) or "none"
    return number(value)


def duration(seconds: float) -> str:
    """Such as 0.8 s, 12.3 s, 4 min 02 s, 3 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def size(num_bytes: float) -> str:
    """Bytes in binary units."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log2(num_bytes) // 10), 4) if num_bytes >= 1 else 0
    return f"{num_bytes / 1024**power:.4g} {units[power]}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """A curve in at most `width` characters, each the mean of its share; a space where nothing is known."""
    means = [_mean(share) for share in _shares(values, width)]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    step = (high - low) / (len(_BLOCKS) - 1) or 1.0
    return "".join(" " if mean is None else _BLOCKS[round((mean - low) / step)] for mean in means)


def flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return flat


def run_command(overrides: Sequence[str]) -> str:
    """The command line that runs ampx with these overrides."""
    return shlex.join(["ampx", "run", *overrides])


def override(name: str, value: str) -> str:
    """`name=value`, quoted as Hydra's grammar wants it."""
    if _BARE_IN_HYDRA.fullmatch(value):
        return f"{name}={value}"
    # a backslash counts as itself, except in a row of them that ends at a quote
    doubled = re.sub(r'(\\+)(?="|$)', r"\1\1", value).replace('"', r"\"")
    return f'{name}="{doubled}"'


def _shares(values: Sequence[float | None], width: int) -> Iterator[Sequence[float | None]]:
    count = min(width, len(values))
    for index in range(count):
        yield values[index * len(values) // count : (index + 1) * len(values) // count]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None
