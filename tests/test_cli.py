import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampx.trial import Trial

ROOT = Path(__file__).parents[1]
AMPX = "from ampx.cli import main; main()"


def ampx(*arguments: object, code: str = AMPX, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    where = os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"} | environment
    return subprocess.run(command, env=where, text=True, capture_output=True, timeout=60, check=False)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    trial = Trial.create(tmp_path / "sweep" / "trial", config_text="seed: 1\n", overrides=["dtype=bf16"])
    trial.append_lines("steps.jsonl", ['{"step": 0, "loss": 2.0, "applied": true}'] * 500)
    return trial


def test_show_and_diff_print_and_exit_0(trial: Trial) -> None:
    for arguments in (
        ["show", trial.path],
        ["show", trial.path.parent],
        ["diff", trial.path, trial.path.parent],
    ):
        result = ampx(*arguments)
        assert (result.returncode, result.stderr) == (0, "")
        assert "pending" in result.stdout


def test_no_trial_is_one_message_and_exit_2(tmp_path: Path) -> None:
    result = ampx("show", tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == (
        f"ampx: {tmp_path}: is no trial: it has no config.yaml; "
        "give the folder of one trial: <out>/<name>/<trial>\n"
    )


def test_a_mistyped_command_is_told_the_nearest(trial: Trial) -> None:
    result = ampx("shw", trial.path)
    assert result.returncode == 2
    assert "No such command 'shw'. Did you mean 'show'?" in result.stderr


def test_show_is_quick_and_does_not_wait_for_torch(trial: Trial) -> None:
    """Broken by importing torch anywhere in ampx.trial, ampx.report or ampx.commands."""
    code = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); " + AMPX
    assert ampx("show", trial.path, code=code).stdout.splitlines()[-1] == "False"
    assert min(_cpu_seconds("show", trial.path) for _ in range(4)) <= 0.5
    assert min(_cpu_seconds("--help") for _ in range(4)) <= 0.5


def _cpu_seconds(*arguments: object) -> float:
    """The processor time of a command, which a busy machine stretches far less than its wall time."""
    before = os.times()
    assert ampx(*arguments).returncode == 0
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def test_run_reaches_hydra_without_typer_or_rich() -> None:
    """Broken by importing Typer at the top of ampx.cli."""
    code = (
        "import atexit, sys; atexit.register(lambda: print({'typer', 'torch'} & set(sys.modules))); " + AMPX
    )
    assert ampx("run", "--cfg", "job", code=code).stdout.splitlines()[-1] == "set()"


def test_a_terminal_that_cannot_draw_gets_question_marks(trial: Trial) -> None:
    result = ampx("show", trial.path, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "attempted 500 ? applied 500" in result.stdout


def test_a_closed_pipe_is_no_error(trial: Trial) -> None:
    command = f"{sys.executable} -c '{AMPX}' show {trial.path} | true"
    result = subprocess.run(
        command, shell=True, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False
    )
    assert result.stderr == ""


def test_tab_completes_the_commands() -> None:
    environment = {"_AMPX_COMPLETE": "complete_bash", "COMP_WORDS": "ampx s", "COMP_CWORD": "1"}
    assert ampx(**environment).stdout.split() == ["show"]
