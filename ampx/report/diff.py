"""Two trials side by side: where their settings, their manifests and their outcomes differ."""

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampx.records import Record
from ampx.report.find import read_config, read_or_none, read_result, short
from ampx.report.ledger import read_ledger
from ampx.report.text import flatten, printable, quantity
from ampx.trial import Trial

_OUTCOMES = ("metrics", "steps", "scale", "throughput", "memory", "train_s", "wall_s")
_ABSENT = "(absent)"


def diff_trials(first: Trial, second: Trial, console: Console) -> None:
    """Print what differs, and the outcomes whether they differ or not."""
    pair = (first, second)
    troubles: list[str] = []
    settings = [flatten(read_config(trial, troubles)) for trial in pair]
    manifests = [flatten(read_or_none(trial, "manifest.json", troubles)) for trial in pair]
    outcomes = [_outcome(trial, troubles) for trial in pair]
    for letter, trial in zip("AB", pair, strict=True):
        console.print(Text(f"{letter}  {printable(short(trial.path))}"), soft_wrap=True)
    _print(console, "settings", *map(_told_apart, settings, reversed(settings)))
    _print(console, "manifest", *map(_told_apart, manifests, reversed(manifests)))
    _print(console, "outcome", *outcomes)
    for trouble in troubles:
        console.print(Text(f"damaged: {printable(trouble)}", style="red"), soft_wrap=True)


def _outcome(trial: Trial, troubles: list[str]) -> Record:
    status = trial.settled_status()
    result = read_result(trial, status, troubles)
    if "steps" not in result:
        ledger = read_ledger(trial.path / "steps.jsonl")
        result = {**result, "steps": ledger.steps(), "scale": ledger.scale()}
    shown = {name: result[name] for name in _OUTCOMES if result.get(name)}
    return flatten({"state": status.state, "reason": status.reason, "attempts": status.attempts, **shown})


def _told_apart(mine: Record, other: Record) -> Record:
    """The entries of `mine` that `other` lacks or has otherwise."""
    return {name: value for name, value in mine.items() if name not in other or other[name] != value}


def _print(console: Console, title: str, first: Record, second: Record) -> None:
    names = sorted({**first, **second}) if title != "outcome" else list({**first, **second})
    if not names:
        console.print(Text(f"\n{title}: no difference"))
        return
    table = Table(title, "A", "B", box=None, pad_edge=False)
    for name in names:
        shown = [_shown(name, values) for values in (first, second)]
        style = "" if shown[0] == shown[1] else "yellow"
        table.add_row(*(Text(cell, style=style, overflow="fold") for cell in (printable(name), *shown)))
    console.print()
    console.print(table)


def _shown(name: str, values: Mapping[str, object]) -> str:
    return quantity(name, values[name]) if name in values else _ABSENT
