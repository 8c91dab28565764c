"""What every test may ask for: configs composed as the user's are, and trials run as the user's are."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

from ampx.config.experiment import ExperimentConfig
from ampx.config.load import dump_config, resolve, validate
from ampx.run import put_plugins_on_path
from ampx.trial import Trial

put_plugins_on_path()  # Hydra looks for plugins once a process
CONF = Path(__file__).resolve().parent.parent / "conf"

Compose = Callable[..., ExperimentConfig]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test marked `gpu` runs where there is one."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tests must not depend on the machine's core count, and several processes share the cores."""
    torch.set_num_threads(1)


@pytest.fixture
def experiment() -> Compose:
    """`experiment("dtype=fp16", "model=mlp")` is the config of `ampx run dtype=fp16 model=mlp`."""

    def build(*overrides: str) -> ExperimentConfig:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            composed = compose("config", overrides=["device=cpu", *overrides])
        return validate(resolve(composed), overrides)

    return build


@pytest.fixture
def make_trial(tmp_path: Path, experiment: Compose) -> Callable[..., Trial]:
    """A pending trial of its own for these overrides."""

    def make(*overrides: str, name: str = "trial") -> Trial:
        config = experiment(*overrides)
        return Trial.create(tmp_path / name, config_text=dump_config(config), overrides=overrides)

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
