"""What happened in a trial, in one screen; what happened in each of several, a line each."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampx.records import Record
from ampx.report.find import read_config, read_or_none, read_result, short
from ampx.report.ledger import Ledger, read_ledger
from ampx.report.text import (
    flatten,
    is_tally,
    number,
    override,
    printable,
    quantity,
    run_command,
    sparkline,
    tally,
)
from ampx.status import State, Status
from ampx.trial import Trial

Row = tuple[str, Text | str]

STYLES: dict[State, str] = {"completed": "green", "running": "cyan", "pending": "dim", "cancelled": "yellow"}
_GROUPS = ("job", "model", "data", "task", "dtype", "scaler", "optimizer", "schedule")
_ROUTINE = ("skip", "save")
_CURVE_WIDTH = 60
_MOST_LEAVES = 16
_MOST_FACTS = 8
_MOST_EVENTS = 5
_ERROR_LINES = 6


def show_trial(trial: Trial, console: Console) -> None:
    """Print everything of note in one trial."""
    troubles: list[str] = []
    status = trial.settled_status()
    config = read_config(trial, troubles)
    manifest = read_or_none(trial, "manifest.json", troubles)
    result = read_result(trial, status, troubles)
    ledger = read_ledger(trial.path / "steps.jsonl")
    rows = [
        *_state(trial, status),
        *_settings(trial, config),
        *_precision(manifest),
        *_metrics(trial, result),
        *_steps(result, ledger),
        *_cost(result),
        *_events(trial),
        *(("damaged", Text(printable(trouble), style="red")) for trouble in troubles),
        *_next(trial, status),
    ]
    print_rows(console, rows)


def show_list(trials: Sequence[Trial], console: Console) -> None:
    """Print a line for each trial."""
    table = Table("trial", "state", "reason", "metrics", "wall", box=None, pad_edge=False)
    for trial in trials:
        table.add_row(Text(printable(trial.path.name), overflow="fold"), *_summary(trial))
    console.print(table)


def print_rows(console: Console, rows: Iterable[Row]) -> None:
    """Print a label and a text a line, repeated labels left out; long lines stay whole, to be copied."""
    last = ""
    for label, text in rows:
        shown = "" if label == last else label
        console.print(Text.assemble((f"{shown:<12}", "bold"), text), soft_wrap=True)
        last = label


def _summary(trial: Trial) -> Iterator[Text]:
    try:
        status = trial.settled_status()
    except ValueError as error:
        yield Text("damaged", style="red")
        yield Text(printable(error), overflow="fold")
        return
    result = read_result(trial, status, [])
    metrics = _dict(result, "metrics")
    yield Text(status.state, style=STYLES.get(status.state, "red"))
    yield Text(printable(status.reason or ""), overflow="fold")
    yield Text(_join({name: _dict(metrics, name).get("final") for name in metrics}), overflow="fold")
    yield Text(quantity("wall_s", result.get("wall_s")))


def _state(trial: Trial, status: Status) -> Iterator[Row]:
    yield "trial", printable(short(trial.path))
    reason = f": {printable(status.reason)}" if status.reason else ""
    yield "state", Text(f"{status.state}{reason}", style=STYLES.get(status.state, "red"))
    times = {"created": status.created, "started": status.started, "ended": status.ended}
    moments = {name: _moment(time) for name, time in times.items() if time}
    yield "when", _join({**moments, "attempts": status.attempts})
    holder = trial.holder()
    if status.state == "running" and holder:
        yield "held by", printable(holder)
    for line in (status.error or "").rstrip().splitlines()[-_ERROR_LINES:]:
        yield "error", Text(printable(line), style="red")


def _settings(trial: Trial, config: Record) -> Iterator[Row]:
    groups = {name: _dict(config, name) for name in _GROUPS}
    names = {name: group.get("kind", group.get("name")) for name, group in groups.items()}
    if text := _join(names | {"seed": config.get("seed")}):
        yield "config", text
    overrides = _overrides(trial)
    unknown = "unknown: overrides.yaml cannot be read"
    yield "typed", unknown if overrides is None else printable(" ".join(overrides)) or "nothing: all defaults"


def _precision(manifest: Record) -> Iterator[Row]:
    requested, effective = _dict(manifest, "requested"), _dict(manifest, "effective")
    yield from _asked_and_got("precision", _bare(requested), _bare(effective))
    for name in {**effective, **requested}:
        yield from _asked_and_got(name, _nested(requested, name), _nested(effective, name))
    if environment := flatten(_dict(manifest, "environment")):
        yield "environment", _join(dict(list(environment.items())[:_MOST_FACTS]))
    for note in _list(manifest, "notes"):
        yield "note", printable(note)


def _asked_and_got(label: str, asked: Record, got: Record) -> Iterator[Row]:
    if len(got) > _MOST_LEAVES:
        yield printable(label), f"{len(got)} entries in manifest.json"
    elif got:
        yield printable(label), _compared(asked, got)
    elif text := _join(asked):
        yield printable(label), f"asked: {text}"


def _compared(asked: Record, got: Record) -> Text:
    text = Text()
    for key, value in got.items():
        if value is None:
            continue
        shown, wanted = tally(value), asked.get(key)
        text.append(f"{' · ' if text else ''}{printable(key)} {shown}")
        if wanted is not None and tally(wanted) != shown:
            text.append(f" (asked: {tally(wanted)})", style="dim" if wanted == "auto" else "yellow")
    return text


def _bare(data: Record) -> Record:
    """What stands for itself: a value, a list, or a tally such as `{"bfloat16": 12}`."""
    return {name: value for name, value in data.items() if not isinstance(value, dict) or is_tally(value)}


def _nested(data: Record, name: str) -> Record:
    value = _dict(data, name)
    return {} if is_tally(value) else flatten(value)


def _metrics(trial: Trial, result: Record) -> Iterator[Row]:
    for name, values in _dict(result, "metrics").items():
        yield "metrics", f"{printable(name)}: {_join(values) if isinstance(values, dict) else number(values)}"
    evaluations = [] if "metrics" in result else trial.read_jsonl("evals.jsonl")
    if evaluations:
        yield "metrics", f"so far: {_join(flatten(evaluations[-1]))}"


def _steps(result: Record, ledger: Ledger) -> Iterator[Row]:
    steps = _dict(result, "steps")
    steps = steps if steps.get("attempted") else ledger.steps()
    skipped = _dict(steps, "skipped")
    reasons = f" ({_join(skipped)})" if skipped else ""
    counts = {name: count for name, count in steps.items() if name != "skipped"}
    yield "steps", f"{_join(counts)} · skipped {sum(skipped.values())}{reasons}"
    yield from _curve("loss", ledger.losses)
    yield "scale", _join(_dict(result, "scale")) or _join(ledger.scale()) or "off"
    yield from _curve("log2 scale", ledger.log2_scales)


def _curve(label: str, values: list[float | None]) -> Iterator[Row]:
    known = [value for value in values if value is not None]
    if known:
        line = sparkline(values, _CURVE_WIDTH)
        yield label, f"{line}  {number(known[0])} → {number(known[-1])} (min {number(min(known))})"


def _cost(result: Record) -> Iterator[Row]:
    for name in ("throughput", "memory"):
        if text := _join(flatten(_dict(result, name))):
            yield name, text
    times = {name: value for name, value in result.items() if name.endswith("_s")}
    if times:
        yield "time", _join(times)


def _events(trial: Trial) -> Iterator[Row]:
    events = trial.read_jsonl("events.jsonl")
    if events:
        yield "events", _join(Counter(str(event.get("kind")) for event in events))
    of_note = [event for event in events if event.get("kind") not in _ROUTINE]
    for event in of_note[-_MOST_EVENTS:]:
        details = {name: value for name, value in event.items() if name not in ("time", "kind", "message")}
        parts = (_moment(event.get("time")), event.get("kind"), event.get("message"), _join(flatten(details)))
        yield "events", printable("  ".join(str(part) for part in parts if part))


def _next(trial: Trial, status: Status) -> Iterator[Row]:
    if status.state == "running":
        return
    resume = override("resume", str(short(trial.path)))
    if status.state == "completed":
        yield "fork", f"{run_command([resume])} train.max_steps=MORE"
    else:
        yield "resume", run_command([resume])
    overrides = _overrides(trial)
    if overrides is not None:
        yield "again", run_command(overrides)


def _moment(time: object) -> str:
    """A time of `status.json` or `events.jsonl`, to the second."""
    return str(time)[:19].replace("T", " ") + "Z"


def _overrides(trial: Trial) -> list[str] | None:
    try:
        return trial.read_overrides()
    except (OSError, ValueError):
        return None


def _dict(data: Record, name: str) -> Record:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _list(data: Record, name: str) -> list[object]:
    value = data.get(name)
    return value if isinstance(value, list) else []


def _join(values: Mapping[str, object]) -> str:
    parts = (
        f"{printable(name)} {quantity(name, value)}" for name, value in values.items() if value is not None
    )
    return " · ".join(part.strip() for part in parts)
