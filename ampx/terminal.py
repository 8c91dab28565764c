"""Makes the output streams of a process safe to print to, whatever stands at their other end."""

import io
import os
import sys


def make_output_safe() -> None:
    """A closed stream becomes /dev/null; a character that a terminal lacks becomes a question mark."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 (it lives as long as the process)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
