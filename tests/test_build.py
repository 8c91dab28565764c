"""Tests of ampx.build: what a user's `_target_` may be, and what each mistake in it is answered with."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ampx.build import build, check_target


@pytest.fixture(autouse=True)
def my_pkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's package, with one module that works and three that do not."""
    package = tmp_path / "my_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("width = 3\n")
    (package / "nets.py").write_text(
        "class Net:\n"
        "    def __init__(self, width, depth=1, *, head=None):\n"
        "        self.width, self.depth, self.head = width, depth, head\n"
        "def takes_anything(**settings):\n"
        "    return settings\n"
    )
    (package / "needs_other.py").write_text("import a_package_that_is_not_here\n")
    (package / "broken.py").write_text("raise RuntimeError('no licence found')\n")
    (package / "crooked.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_pkg"]:
        del sys.modules[name]


def test_a_target_is_called_with_the_arguments_beside_it() -> None:
    net = build("my_pkg.nets.Net", {"width": 4, "head": {"a": [1, 2]}})
    assert (net.width, net.depth, net.head) == (4, 1, {"a": [1, 2]})  # type: ignore[attr-defined]


def test_nested_targets_are_built_first_inside_mappings_and_lists_too() -> None:
    inner = {"_target_": "my_pkg.nets.Net", "width": 1}
    net = build("my_pkg.nets.Net", {"width": inner, "depth": [inner, 5], "head": {"x": inner}})
    built = [net.width, net.depth[0], net.head["x"]]  # type: ignore[attr-defined]
    assert [type(each).__name__ for each in built] == ["Net"] * 3


def test_partial_waits_for_what_is_missing() -> None:
    factory = build("my_pkg.nets.Net", {"_partial_": True, "depth": 2})
    assert isinstance(factory, partial)
    assert factory(7).width == 7


def test_a_class_method_can_be_the_target() -> None:
    assert build("fractions.Fraction.from_float", {"f": 0.5}) == 0.5


def test_a_function_that_takes_any_name_gets_any_name() -> None:
    assert build("my_pkg.nets.takes_anything", {"x": 1}) == {"x": 1}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_pk.nets.Net", r"model\._target_=my_pk\.nets\.Net: there is no module 'my_pk'; .*PYTHONPATH"),
        ("my_pkg.net.Net", r"my_pkg has no 'net'.*did you mean nets\?"),
        ("my_pkg.nets.Nett", r"my_pkg\.nets has no 'Nett'; did you mean Net\?"),
        ("my_pkg.nets.Net.make", r"my_pkg\.nets\.Net has no 'make'; look for the name in my_pkg\.nets\.Net"),
        ("my_pkg.needs_other.Net", r"importing my_pkg\.needs_other raised ModuleNotFoundError: .*not_here"),
        ("my_pkg.broken.Net", r"importing my_pkg\.broken raised RuntimeError: no licence found"),
        ("my_pkg.crooked.f", r"importing my_pkg\.crooked raised SyntaxError: .*crooked\.py, line 1"),
        ("my_pkg.nets", r"_target_=my_pkg\.nets: is of type module; name a class or a function"),
        ("my_pkg.width", r"_target_=my_pkg\.width: is of type int"),
        ("Net", r"_target_=Net: must be a dotted path"),
    ],
)
def test_a_target_that_cannot_be_imported_says_which_part_failed(target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_target(target, {}, setting="model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"widht": 4}, r"model\.widht=4: my_pkg\.nets\.Net takes no argument 'widht'; did you mean width\?"),
        ({"width": 4, "zzz": 1}, r"takes no argument 'zzz'; its arguments are: width, depth, head"),
        ({}, r"model\._target_=my_pkg\.nets\.Net: needs a value for width; add \+model\.width=…"),
        (
            {"width": 4, "head": {"_target_": "my_pkg.nets.Net", "wide": 1}},
            r"model\.head\.wide=1: .* takes no argument 'wide'; did you mean width\?",
        ),
        ({"width": [{"_target_": "my_pkg.nets.Nit"}]}, r"model\.width\.0\._target_=my_pkg\.nets\.Nit: "),
        ({"width": {"_target_": 3}}, r"model\.width\._target_=3: must be a dotted path"),
    ],
)
def test_arguments_are_checked_by_name_before_anything_is_called(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build("my_pkg.nets.Net", arguments, setting="model")


def test_an_error_inside_the_target_is_the_targets_own() -> None:
    with pytest.raises(ZeroDivisionError):
        build("fractions.Fraction", {"numerator": 1, "denominator": 0})


def test_targets_without_a_signature_are_called_unchecked() -> None:
    assert build("builtins.dict", {"a": 1}) == {"a": 1}


def test_checking_a_target_needs_no_torch() -> None:
    code = (
        "import sys; from ampx.build import check_target; check_target('json.dumps', {'obj': 1}); "
        "print('torch' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout.strip() == "False"
