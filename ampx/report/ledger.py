"""What `steps.jsonl` says: the curves of a trial, and the counts of one that has not written its result.

Of a long file every n-th record is decoded, besides all that tell of a skip, so that a million steps
take a second or so and no memory.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ampx.records import Record, parse

_WHOLE_BYTES = 4_000_000  # up to here every record is decoded
_APPLIED = re.compile(rb'"applied": ?true.*}\n$')


@dataclass(frozen=True)
class Ledger:
    """The step records of a trial, of all its optimizers."""

    num_records: int
    skips: list[Record]
    turns: list[Record]  # the first, each skip and what follows it, the last: where a scale turns
    samples: list[Record]

    def steps(self) -> Record:
        """Counts as in `result.json`: attempted, applied, skipped by reason."""
        skipped = Counter(str(record.get("skip_reason")) for record in self.skips)
        applied = self.num_records - len(self.skips)
        return {"attempted": self.num_records, "applied": applied, "skipped": dict(skipped)}

    def scale(self) -> Record:
        """The loss scale as in `result.json`: first, last, min, max; empty if no scaler was active."""
        known = [scale for record in self.turns if (scale := record.get("scale")) is not None]
        if not known:
            return {}
        return {"first": known[0], "last": known[-1], "min": min(known), "max": max(known)}

    @property
    def losses(self) -> list[float | None]:
        """The loss along the trial."""
        return self._curve("loss")

    @property
    def log2_scales(self) -> list[float | None]:
        """The exponent of the scale along the trial."""
        return [math.log2(scale) if scale else None for scale in self._curve("scale")]

    def _curve(self, name: str) -> list[float | None]:
        first = self.samples[0].get("optimizer") if self.samples else None
        return [record.get(name) for record in self.samples if record.get("optimizer") == first]


def read_ledger(path: Path) -> Ledger:
    """The ledger in a `steps.jsonl`, empty where there is no such file."""
    try:
        stride = 1 + path.stat().st_size // _WHOLE_BYTES
        with path.open("rb") as lines:
            return _read(lines, stride)
    except FileNotFoundError:
        return Ledger(0, [], [], [])


def _read(lines: Iterable[bytes], stride: int) -> Ledger:
    num_records, skips, turns, samples = 0, [], [], []
    after_skip, last = True, b""
    for line in lines:
        if _APPLIED.search(line) and not after_skip and num_records % stride:
            num_records, last = num_records + 1, line
            continue
        record = parse(line)
        if record is None:
            continue
        is_skip = not record.get("applied")
        samples += [record] if num_records % stride == 0 else []
        turns += [record] if is_skip or after_skip else []
        skips += [record] if is_skip else []
        num_records, after_skip, last = num_records + 1, is_skip, line
    end = parse(last)
    return Ledger(num_records, skips, turns + ([end] if end else []), samples)
