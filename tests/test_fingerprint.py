"""Fingerprints change with the code that makes a trial's numbers, and with nothing else."""

import sys
from pathlib import Path

import pytest

from ampx.fingerprint import fingerprints, targets_in


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own package on the path, with one module inside another folder."""
    root = tmp_path / "my_fingerprinted_pkg"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "inner" / "net.py").write_text("WIDTH = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield root
    sys.modules.pop("my_fingerprinted_pkg", None)


TARGET = "my_fingerprinted_pkg.inner.net.Net"


def test_any_file_of_the_package_counts_and_only_its_python(package: Path) -> None:
    """Red when only the target's own file is read: a layer next to it changes the numbers too."""
    first = fingerprints([TARGET])
    assert set(first) == {"ampx", "my_fingerprinted_pkg"}
    (package / "notes.txt").write_text("nothing")
    assert fingerprints([TARGET]) == first
    (package / "inner" / "net.py").write_text("WIDTH = 2\n")
    second = fingerprints([TARGET])
    assert second["ampx"] == first["ampx"]
    assert second["my_fingerprinted_pkg"] != first["my_fingerprinted_pkg"]


def test_a_renamed_file_is_another_package(package: Path) -> None:
    """Red when contents alone are hashed."""
    first = fingerprints([TARGET])
    (package / "inner" / "net.py").rename(package / "inner" / "network.py")
    assert fingerprints([TARGET]) != first


def test_a_single_module_is_read_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_single_module.py").write_text("A = 1\n")
    (tmp_path / "neighbour.py").write_text("B = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    first = fingerprints(["my_single_module.Net"])
    (tmp_path / "neighbour.py").write_text("B = 2\n")
    assert fingerprints(["my_single_module.Net"]) == first


def test_an_installed_package_is_known_by_its_version_and_a_lost_one_is_unknown() -> None:
    import torch

    found = fingerprints(["torch.optim.RMSprop", "no_such_package_anywhere.Net"])
    assert found["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["no_such_package_anywhere"] == "unknown"


def test_targets_are_found_at_any_depth() -> None:
    settings = {
        "model": {"_target_": "a.Net", "block": {"_target_": "b.Block"}, "width": 3},
        "tracker": {"observers": [{"_target_": "c.Watch"}, {"kind": "none"}]},
        "data": ("x", {"_target_": "d.data"}),
    }
    assert list(targets_in(settings)) == ["a.Net", "b.Block", "c.Watch", "d.data"]
