"""Every `python -m ampx.run …` that the docs show is run, cut short."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from ampx.launch import dispatch
from ampx.run import main
from ampx.worker import run_trial

ROOT = Path(__file__).resolve().parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORT = ["train.limit_batches=1", "train.max_epochs=1"]
COMMAND = re.compile(r"(?:python -m ampx\.run|^ampx run|^scripts/run)\b([^`#\n]*)", re.MULTILINE)
SHOWS_ONLY = ("--cfg", "--help", "-sc", "--info")


def commands() -> list[str]:
    """The arguments of every command line in the docs, each once; those with … are patterns, not commands."""
    found = (match.strip(" |") for path in DOCS for match in COMMAND.findall(path.read_text()))
    found = (text.removesuffix(')"') for text in found)  # of eval "$(…)"
    return [text for text in dict.fromkeys(found) if "…" not in text]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `<trial>` stands for."""
    out = tmp_path_factory.mktemp("trained")
    assert main([f"out={out}", *SHORT]) == 0
    return next(path.parent for path in out.glob("*/*/result.json"))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory with the files that the docs tell to make; trials of a sweep run in this process."""
    (tmp_path / "my_conf" / "model").mkdir(parents=True)
    (tmp_path / "my_conf" / "model" / "wide.yaml").write_text("kind: mlp\nhidden: [512, 512]\n")
    shutil.copy(ROOT / "docs" / "examples" / "my_pkg.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setattr(dispatch, "_run_in_process_of_its_own", lambda trial: run_trial(trial).exit_code)
    return tmp_path


@pytest.mark.parametrize("text", commands())
def test_a_command_of_the_docs_does_what_it_shows(text: str, trained: Path, desk: Path) -> None:
    typed = os.path.expandvars(re.sub(r"(outputs/\w+/)?<trial>", shlex.quote(str(trained)), text))
    arguments = shlex.split(typed)
    is_whole = any(argument.startswith((*SHOWS_ONLY, "resume=")) for argument in arguments)
    is_fork = "resume=" in text and "train." in text
    short = [] if is_whole else [short for short in SHORT if short.split("=")[0] not in text]
    short += ["train.max_time_s=1"] if is_fork else []
    assert main([*arguments, *short]) == 0
    assert is_whole or list(desk.glob("outputs/*/*/result.json"))


def test_the_docs_hold_commands() -> None:
    assert len(commands()) > 30
