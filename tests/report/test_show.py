import io
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ampx.report.show import show_list, show_trial
from ampx.trial import Trial

Printed = Callable[..., str]


def test_one_screen_tells_what_happened(completed: Trial, printed: Printed) -> None:
    text = printed(show_trial, completed)
    assert len(text.splitlines()) < 40
    for line in (
        r"state       completed",
        r"config      model resnet_small · data digits · scaler dynamic · optimizer adamw · seed 1",
        r"typed       dtype=bf16 +model.name='a b'",
        r"precision   param_dtype float32 · compute_dtype bfloat16 x12, float32 x1 (asked: bfloat16) · "
        r"output_dtype float32 (asked: bfloat16) · islands none · kernels native (asked: auto)",
        r"scaler      kind dynamic · is_active false",
        r"ops         40 entries in manifest.json",
        r"environment torch 2.14.1 · device cpu · threads 2",
        r"note        scaler inactive for bfloat16 (enabled=auto)",
        r"metrics     accuracy: final 0.975 · best 0.978",
        r"steps       planned 6 · attempted 6 · applied 5 · skipped 1 (inf_grad 1)",
        r"scale       first 65536 · last 32768 · min 32768 · max 65536",
        r"log2 scale  ████▁▁  16 → 15 (min 15)",
        r"throughput  samples_per_s 12346 · step_ms_median 8.123",
        r"memory      peak_bytes 812 MiB",
        r"time        train_s 1 min 13 s · wall_s 1 min 23 s",
        r"events      skip 1 · warning 1",
    ):
        assert line in text.splitlines()
    assert re.search(r"^loss +█\S+ \S*▁  2 → 1\.167", text, re.MULTILINE)
    assert re.search(r"\d\dZ  warning  float16 is slow here \[native\]  step 0$", text, re.MULTILINE)
    assert re.search(r"^fork +ampx run resume=\S+/sweep/trial train\.max_steps=MORE$", text, re.MULTILINE)


def test_a_trial_that_died_before_its_first_step_shows_what_was_asked(
    completed: Trial, printed: Printed
) -> None:
    manifest = completed.read_json("manifest.json") or {}
    completed.write_json("manifest.json", {"requested": manifest["requested"]})
    text = printed(show_trial, completed)
    assert re.search(r"^precision +asked: name bf16 · compute_dtype bfloat16 · ", text, re.MULTILINE)
    assert re.search(r"^scaler +asked: kind dynamic · enabled auto$", text, re.MULTILINE)


def test_a_file_or_a_pipe_gets_plain_lines_and_a_terminal_gets_colour(
    completed: Trial, printed: Printed
) -> None:
    assert "\x1b" not in printed(show_trial, completed)
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    show_trial(completed, terminal)
    assert "\x1b[32mcompleted" in terminal.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_a_running_trial_shows_its_holder_and_how_far_it_is(completed: Trial, printed: Printed) -> None:
    """Broken by showing whatever result is there: this one is the first attempt's."""
    completed.set_status("pending")
    os.utime(completed.path / "result.json", times=(time.time() - 1,) * 2)
    with completed.locked():
        completed.set_status("running")
        text = printed(show_trial, completed)
    assert re.search(r"^state +running\n.*attempts 2\nheld by +process \d+ on ", text, re.MULTILINE)
    assert "steps       attempted 6 · applied 5 · skipped 1 (inf_grad 1)" in text
    assert "metrics     so far: step 5 · accuracy 0.975" in text
    assert "scale       first 65536 · last 32768 · min 32768 · max 65536" in text
    assert "resume" not in text


def test_a_failed_trial_shows_the_last_lines_of_its_error_and_how_to_go_on(
    pending: Trial, printed: Printed
) -> None:
    pending.set_status("running")
    lines = [f"line {number} [bold]" for number in range(20)]
    pending.set_status(
        "failed", reason="ValueError: [/] \x1b[31m", error="\n".join([*lines, "ValueError: [/]"])
    )
    text = printed(show_trial, pending)
    assert r"state       failed: ValueError: [/] \x1b[31m" in text
    assert "line 19 [bold]\n            ValueError: [/]\n" in text
    assert "line 2 " not in text
    assert re.search(r"^resume +ampx run resume=\S+/sweep/trial$", text, re.MULTILINE)
    assert text.splitlines()[-1].endswith("""ampx run dtype=bf16 '+model.name='"'"'a b'"'"''""")


def test_a_trial_that_never_started_is_shown(pending: Trial, printed: Printed) -> None:
    text = printed(show_trial, pending)
    assert "state       pending" in text
    assert "steps       attempted 0 · applied 0 · skipped 0" in text
    assert "scale       off" in text


@pytest.mark.parametrize(
    "name", ["manifest.json", "result.json", "config.yaml", "overrides.yaml", "steps.jsonl"]
)
@pytest.mark.parametrize("damage", [b"", b"{", b"\x00\xff[1, 2", b"[1]", b'{"metrics": 3, "requested": []}'])
def test_damage_to_one_file_hides_nothing_else(
    completed: Trial, printed: Printed, name: str, damage: bytes
) -> None:
    """Broken by reading any of them without the list of troubles."""
    (completed.path / name).write_bytes(damage)
    text = printed(show_trial, completed)
    assert "state       completed" in text
    if damage == b"{" and name.endswith("json"):
        assert re.search(rf"^damaged +\S+/{name}: cannot be read", text, re.MULTILINE)


def test_missing_files_hide_nothing_else(completed: Trial, printed: Printed) -> None:
    for name in (
        "manifest.json",
        "result.json",
        "overrides.yaml",
        "steps.jsonl",
        "evals.jsonl",
        "events.jsonl",
    ):
        (completed.path / name).unlink()
    text = printed(show_trial, completed)
    assert "state       completed" in text
    assert "typed       unknown: overrides.yaml cannot be read" in text


def test_brackets_in_a_path_are_no_markup(tmp_path: Path, printed: Printed) -> None:
    trial = Trial.create(tmp_path / "[red]a[/bold]" / "t", config_text="", overrides=["x=[/red]"])
    text = printed(show_trial, trial)
    assert "/[red]a[/bold]/t\n" in text
    assert "typed       x=[/red]\n" in text


def test_several_trials_get_a_line_each_and_a_damaged_one_too(completed: Trial, printed: Printed) -> None:
    folder = completed.path.parent
    broken = Trial.create(folder / "broken", config_text="", overrides=[])
    (broken.path / "status.json").write_text("{")
    text = printed(show_list, [completed, broken])
    assert re.search(r"^trial +completed +accuracy 0\.975 +1 min 23 s *$", text, re.MULTILINE)
    assert re.search(r"^broken +damaged +\S+status\.json: cannot be read", text, re.MULTILINE)
