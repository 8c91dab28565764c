import math
import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from ampx.report.text import (
    duration,
    flatten,
    is_tally,
    number,
    override,
    printable,
    quantity,
    run_command,
    size,
    sparkline,
    tally,
)


def test_numbers_are_short_and_honest() -> None:
    shown = [number(value) for value in (65536.0, 0.123456, 1e-8, 2**40, 12345.67, True, None, "bfloat16")]
    assert shown == ["65536", "0.1235", "1e-08", "1099511627776", "12346", "true", "-", "bfloat16"]


def test_the_unit_comes_from_the_name() -> None:
    assert quantity("peak_bytes", 812 * 2**20) == "812 MiB"
    assert quantity("wall_s", 83) == "1 min 23 s"
    assert quantity("samples_per_s", 83.0) == "83"
    assert quantity("wall_s", None) == "-"
    assert (size(0), size(1023), size(1536)) == ("0 B", "1023 B", "1.5 KiB")
    assert (duration(0.84), duration(59.94), duration(3600 * 3 + 300)) == ("0.8 s", "59.9 s", "3 h 05 min")


def test_a_curve_rises_where_its_values_rise() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 60) == "▁▂▃▄▅▆▇█"
    assert sparkline([float(value) for value in range(800)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, 1.0], 60) == "▁▁"
    assert sparkline([0.0, None, math.inf, 7.0], 60) == "▁  █"
    assert sparkline([], 60) == sparkline([None], 60) == ""


def test_a_tally_shows_its_counts_only_where_there_are_several() -> None:
    shown = [tally(value) for value in ({"bfloat16": 12}, {"a": 2, "b": 1}, ["a", "b"], [], {}, 8.0, "auto")]
    assert shown == ["bfloat16", "a x2, b x1", "a, b", "none", "none", "8", "auto"]
    assert not is_tally({"kind": "dynamic", "count": 1})


def test_nested_settings_get_dotted_names() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": [1, 2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [1, 2], "e": {}}


def test_no_string_can_drive_the_terminal() -> None:
    assert printable("red \x1b[31m\r\n[bold] größe") == r"red \x1b[31m\r\n[bold] größe"


@pytest.mark.parametrize(
    "path",
    [
        "outputs/a",
        "/tmp/two words",
        "it's",
        'a"b',
        "a,b",
        "x=y",
        "größe",
        "(1)",
        "[a]",
        "{b}",
        "a\\",
        'a\\"b',
        "a:b",
        "~x",
    ],
)
def test_a_printed_command_survives_the_shell_and_hydras_grammar(path: str) -> None:
    """Broken by shell quoting alone: Hydra then reads a,b as a sweep."""
    (typed,) = shlex.split(run_command([override("resume", path)]))[2:]
    (parsed,) = OverridesParser.create().parse_overrides([typed])
    assert not parsed.is_sweep_override()
    assert parsed.value() == path
