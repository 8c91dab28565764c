"""The commands that read trial directories, as a Typer application; torch-free."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_OF_A_FILE = 200  # where no terminal says how wide it is

TrialPath = Annotated[
    Path, typer.Argument(metavar="TRIAL", help="A trial's folder, or the folder of its name.")
]

app = typer.Typer(
    help="Train in mixed precision, account for every step, and see what happened.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command(context_settings={"ignore_unknown_options": True})
def run(overrides: Annotated[list[str], typer.Argument(metavar="[OVERRIDE]...")]) -> None:
    """Run one trial or a sweep, such as: ampx run dtype=bf16 scaler.growth_interval=300."""
    from ampx.run import main

    raise typer.Exit(main(overrides))


@app.command()
def show(path: TrialPath) -> None:
    """Show what happened in a trial, in one screen; in a folder of several, a line each."""
    from ampx.report.find import find_trials
    from ampx.report.show import show_list, show_trial

    trials = find_trials(path)
    if len(trials) == 1:
        show_trial(trials[0], _console())
    else:
        show_list(trials, _console())


@app.command()
def diff(first: TrialPath, second: TrialPath) -> None:
    """Show where the settings, environments and outcomes of two trials differ."""
    from ampx.report.diff import diff_trials
    from ampx.report.find import find_one

    diff_trials(find_one(first), find_one(second), _console())


@app.command()
def export(
    path: Annotated[
        Path, typer.Argument(metavar="TRIAL", help="A trial's folder, or one of its checkpoints.")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write, such as model.safetensors.")],
) -> None:
    """Write a trial's best weights, else its newest (averaged if it kept an EMA), to a safetensors file."""
    from ampx.training.checkpoint import find_checkpoint, load_checkpoint
    from ampx.training.weights import export_weights

    checkpoint = find_checkpoint(path)
    export_weights(load_checkpoint(checkpoint), file)
    print(f"wrote {file} from {checkpoint}")


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
