"""Imports point down: who may import whom is DESIGN, and this is its guard."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

AMPX = Path(__file__).resolve().parent.parent / "ampx"
LAYERS = [  # lowest first; parts of one layer do not import each other
    {"status", "records", "names", "terminal", "stop"}, {"lock"}, {"trial", "config", "fingerprint", "spec"},
    {"build", "device"},
    {"targets"},
    {"numerics"},
    {"scaling", "track", "tasks", "models", "data"},
    {"training"},
    {"jobs"},
    {"worker"},
    {"launch", "report"},
    {"_hydra"}, {"run"}, {"commands"}, {"cli"},
]  # fmt: skip
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
MODULES = sorted({*AMPX.rglob("*.py")} - {AMPX / "__init__.py"} - {*AMPX.glob("_hydra/hydra_plugins/*.py")})


def part_of(path: Path) -> str:
    return path.relative_to(AMPX).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Top-level names that a file imports, `ampx.x` as `ampx.x`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(AMPX)))
def test_every_module_imports_only_from_below(path: Path) -> None:
    own = part_of(path)
    for name in imports_of(path):
        if name.startswith("ampx."):
            part = name.split(".")[1]
            is_below = part == own or LEVEL[part] < LEVEL[own]
            assert is_below, f"{own} imports {name}, which is not below it"


def test_hydra_stays_in_run_and_its_plugins() -> None:
    users = {part_of(path) for path in MODULES if any(n.split(".")[0] == "hydra" for n in imports_of(path))}
    assert users <= {"run", "_hydra"}


def test_the_config_and_the_trial_are_torch_free() -> None:
    for path in MODULES:
        if part_of(path) in ("config", "trial", "records", "lock", "status", "report", "cli", "run"):
            assert not any(name.split(".")[0] == "torch" for name in imports_of(path)), path


def test_no_file_is_longer_than_400_lines() -> None:
    assert [path for path in MODULES if len(path.read_text().splitlines()) > 400] == []
