"""The Hydra application: `python -m ampx.run`, and `ampx run`.

Light imports only at module level: worker processes import the main module once more.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ampx.terminal import make_output_safe

_PACKAGE = Path(__file__).resolve().parent


def main(argv: Sequence[str] | None = None) -> int:
    """Does what the arguments ask for and returns the exit code: 2 for a wrong request, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    make_output_safe()
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has gone, as in `--cfg job | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def conf_dir() -> Path:
    """Where the config groups are: beside the package in a checkout, inside it once installed.

    A checkout goes first, since an editable install leaves a stale copy inside the package.
    """
    checkout = _PACKAGE.parent
    is_checkout = (checkout / "pyproject.toml").is_file() and (checkout / "conf" / "config.yaml").is_file()
    return (checkout if is_checkout else _PACKAGE) / "conf"


def put_plugins_on_path() -> None:
    """Hydra takes plugins from a top-level package `hydra_plugins`; it looks once a process."""
    plugins = str(_PACKAGE / "_hydra")
    if plugins not in sys.path:
        sys.path.append(plugins)


def _run(arguments: list[str]) -> int:
    put_plugins_on_path()
    from ampx._hydra.compose import compose_requests

    try:
        requests = compose_requests(arguments, conf_dir())
        if not requests:
            return 0
        from ampx.launch.dispatch import launch

        return launch(requests)
    except ValueError as error:  # what a user can mend; anything else is a bug of ours
        print(error, file=sys.stderr)
        return 2
    except SystemExit as stop:  # argparse, or Hydra after --help
        return stop.code if isinstance(stop.code, int) else 1


if __name__ == "__main__":
    sys.exit(main())
