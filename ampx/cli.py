"""The `ampx` command: `ampx run` is the Hydra application, and never waits for what the others import."""

import sys

from ampx.terminal import make_output_safe


def main() -> None:
    """Entry point. Exits 2 where the request was wrong."""
    is_completion = sys.argv[1:2] == ["-sc"]  # what Hydra's own bash completion calls
    if is_completion or sys.argv[1:2] == ["run"]:
        from ampx.run import main as run

        sys.exit(run(sys.argv[1 if is_completion else 2 :]))
    from ampx.commands import app

    make_output_safe()
    try:
        app(prog_name="ampx")
    except ValueError as error:
        print(f"ampx: {error}", file=sys.stderr)
        sys.exit(2)
