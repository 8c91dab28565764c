"""The command line as a user meets it: real processes, and `main` where a process shows nothing more."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ampx.run import conf_dir, main

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-m", "ampx.run"]


def ampx_run(
    *arguments: str, cwd: Path, path: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    where = os.environ | {"PYTHONPATH": str(path)} | environment
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, env=where, text=True, capture_output=True, timeout=60, check=False
    )


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working directory that is no checkout, with a space in its name."""
    path = tmp_path / "my experiments"
    path.mkdir()
    return path


def test_cfg_job_shows_every_setting_without_importing_torch(elsewhere: Path) -> None:
    """Seen to fail with `import torch` in ampx/config/load.py."""
    code = (
        "import sys, time; start = time.perf_counter()\n"
        "from ampx.run import main; code = main(['--cfg', 'job', 'dtype=fp16'])\n"
        "print(code, 'torch' in sys.modules, time.perf_counter() - start, file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    shown = subprocess.run(
        [sys.executable, "-c", code],
        cwd=elsewhere,
        env=environment,
        text=True,
        capture_output=True,
        check=True,
    )
    exit_code, has_torch, seconds = shown.stderr.split()
    assert (exit_code, has_torch) == ("0", "False")
    assert float(seconds) < 3  # 0.4 s on a quiet machine; the promise is 0.6
    assert "compute_dtype: float16" in shown.stdout
    assert "hydra" not in shown.stdout


def test_help_info_and_completion_answer_from_any_directory_and_write_nothing(elsewhere: Path) -> None:
    extra = elsewhere / "own conf"
    (extra / "model").mkdir(parents=True)
    (extra / "model" / "tiny.yaml").write_text("kind: mlp\nhidden: [8]\n")
    before = sorted(elsewhere.rglob("*"))
    for arguments, environment, expected in (
        (["--help"], {}, "dtype: bf16, bf16_pure, fp16, fp16_pure, fp32, tf32"),
        (["--info", "searchpath"], {"AMPX_CONF": str(extra)}, "AMPX_CONF"),
        (["-sc", "install=bash"], {}, "complete -o nospace -o default -F hydra_bash_completion ampx"),
        (["-sc", "query=bash"], {"COMP_LINE": "ampx run dtype=fp16_"}, "dtype=fp16_pure"),
        (["-sc", "query=bash"], {"COMP_LINE": "ampx scaler.growth_i"}, "scaler.growth_interval="),
        (["-sc", "query=bash"], {"COMP_LINE": "ampx run model=ti", "AMPX_CONF": str(extra)}, "model=tiny"),
    ):
        shown = ampx_run(*arguments, cwd=elsewhere, **environment)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert expected in shown.stdout
    assert sorted(elsewhere.rglob("*")) == before


def test_an_installed_package_finds_its_own_conf(tmp_path: Path, elsewhere: Path) -> None:
    site = tmp_path / "site-packages"
    shutil.copytree(ROOT / "ampx", site / "ampx", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "conf", site / "ampx" / "conf")
    (site / "conf").mkdir()  # somebody else's
    shown = ampx_run("--info", "searchpath", cwd=elsewhere, path=site)
    assert str(site / "ampx" / "conf") in shown.stdout
    assert ampx_run("--cfg", "job", cwd=elsewhere, path=site).returncode == 0


def test_a_checkout_ignores_the_copy_that_an_editable_install_left(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "conf/config.yaml", "ampx/run.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(tmp_path / "conf", tmp_path / "ampx" / "conf")
    code = "import run; print(run.conf_dir())"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "ampx", text=True, capture_output=True, check=True
    )
    assert found.stdout.strip() == str(tmp_path / "conf")
    assert conf_dir() == ROOT / "conf"


def test_only_the_standard_library_is_imported_with_the_module() -> None:
    """A worker process imports the parent's main module once more."""
    code = "import sys; import ampx.run; print({name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True
    )
    assert not {"hydra", "omegaconf", "pydantic", "torch"} & eval(loaded.stdout)


def test_a_reader_that_has_gone_costs_no_traceback(elsewhere: Path) -> None:
    """Seen to fail without `except BrokenPipeError`, and without `logging.raiseExceptions = False`."""
    for flags in (["--cfg", "job"], ["--info", "defaults"]):
        process = subprocess.Popen(
            [*COMMAND, *flags],
            cwd=elsewhere,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.wait(timeout=60) in (0, 1)  # 0 where Hydra's logging was what could not write
        assert process.stderr.read() == ""
        process.stderr.close()


def test_control_c_while_a_target_is_checked_exits_130(elsewhere: Path) -> None:
    (elsewhere / "slow.py").write_text(
        "import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [*COMMAND, "model=custom", "model._target_=slow.Net"],
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (elsewhere / "started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "")


def test_an_unknown_flag_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bogus"]) == 2
    assert "ampx run: error: unrecognized arguments: --bogus" in capsys.readouterr().err


def test_a_search_path_that_is_no_directory_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["hydra.searchpath=[/nowhere]"]) == 2
    assert "hydra.searchpath=[/nowhere]: is no directory" in capsys.readouterr().err
    monkeypatch.setenv("AMPX_CONF", "/nowhere")
    assert main(["--cfg", "job"]) == 2
    assert "AMPX_CONF=/nowhere: is no directory" in capsys.readouterr().err
