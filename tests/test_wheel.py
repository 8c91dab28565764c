"""The wheel carries `conf/` and works from any directory, without the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("ampx-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_wheel_runs_a_trial_from_any_directory(installed: Path, tmp_path: Path) -> None:
    desk = tmp_path / "a desk with spaces"
    desk.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    where = subprocess.run(
        [sys.executable, "-c", "import ampx; print(ampx.__file__)"],
        cwd=desk, env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(installed))
    done = subprocess.run(
        [sys.executable, "-m", "ampx.run", "model=mlp", "train.max_steps=1", "train.limit_batches=1"],
        cwd=desk, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(desk.glob("outputs/*/*/result.json"))


def test_the_wheel_holds_every_option_and_the_embedded_data(installed: Path) -> None:
    options = {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}
    packed = {path.relative_to(installed / "ampx" / "conf") for path in installed.rglob("conf/**/*.yaml")}
    assert packed == options
    assert (installed / "ampx" / "data" / "digits.npz").is_file()
    assert (installed / "ampx" / "py.typed").is_file()
