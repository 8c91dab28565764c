"""Every `python -m ampx.run …` that the docs show is run, cut short."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from ampx.run import main

ROOT = Path(__file__).resolve().parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORT = ["train.limit_batches=1", "train.max_epochs=1", "train.eval_every=null"]
COMMAND = re.compile(r"(?:python -m ampx\.run|^ampx run|^scripts/run)\b([^`#\n]*)", re.MULTILINE)
SHOWS_ONLY = ("--cfg", "--help", "-sc", "--info")


def commands() -> list[str]:
    """The arguments of every command line in the docs, each once; those with … are patterns, not commands."""
    found = (match.strip(' "$)|') for path in DOCS for match in COMMAND.findall(path.read_text()))
    return [text for text in dict.fromkeys(found) if "…" not in text]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `<trial>` stands for."""
    out = tmp_path_factory.mktemp("trained")
    assert main([f"out={out}", *SHORT]) == 0
    return next(path.parent for path in out.glob("*/*/result.json"))


@pytest.mark.parametrize("text", commands())
def test_a_command_of_the_docs_does_what_it_shows(
    text: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMPX_OUT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "docs" / "examples"))
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    arguments = shlex.split(text.replace("<trial>", str(trained)))
    is_shown = any(argument.startswith(SHOWS_ONLY) for argument in arguments)
    cut = [] if is_shown else SHORT if not any(a.startswith("resume=") for a in arguments) else []
    code = main([*arguments, *(short for short in cut if short.split("=")[0] not in text)])
    assert code == 0, text
    assert is_shown or list(tmp_path.glob("*/*/result.json")) or trained.exists()


def test_the_docs_hold_commands() -> None:
    assert len(commands()) > 20
    assert sys.version_info >= (3, 11)
