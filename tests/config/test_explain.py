"""A wrong value is one line: the setting as typed, the rule, and the nearest name that would do."""

import pytest

from ampx.run import main

WRONG = {
    "dtype.scope=forwardloss": "must be one of forward_loss, forward_float, forward_raw, step; "
    "did you mean forward_loss?",
    "device=gpu": "must be one of auto, cpu, cuda, mps",
    "optimizer.kind=adamww": "must be one of adamw, adam, sgd, adagrad, custom; did you mean adamw?",
    "scaler.growth_interval=0": "must be at least 1",
    "scaler.growth_interval=1.5": "is not a whole number",
    "scaler.growth_interval=abc": "is not a number; numbers may be typed as 300, 1e-3 or 2**16",
    "scaler.growth_interval=true": "is true or false where a number is needed",
    "scaler.growth_interval=[1]": "must be a number, such as 300, 1e-3 or 2**16",
    "scaler.enabled=perhaps": "must be auto, true or false",
    "optimizer.fused=perhaps": "must be auto or true or false",
    "train.clip_norm=0": "must be greater than 0",
    "train.ema_decay=1": "must be less than 1",
    "seed=2**33": "must be at most 4294967295",
    "deterministic=perhaps": "must be true or false",
    "tags=fast": "must be a list, such as [a,b]",
    "name=''": "must not be empty",
    "train=3": "must be a section of settings; set them one by one",
    "optimizer.betas=[0.9]": "needs more entries",
    "model._target_=Net": "must be the dotted path of a class or function, such as my_pkg.Net",
    "+scaler.growth_intervall=3": "there is no such setting; did you mean scaler.growth_interval?",
    "+nonsense=3": "there is no such setting; the config has seed, name, out",
    "~scaler": "has no value; give it one",
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_value_is_one_line_in_the_words_typed(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    custom = ["model=custom"] if "_target_" in typed else []
    assert main([*custom, typed]) == 2
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{typed}: {WRONG[typed]}")


def test_every_wrong_value_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train.max_steps=0", "seed=-1", "scaler.backoff_factor=2"]) == 2
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "seed=-1",
        "train.max_steps=0",
        "scaler.backoff_factor=2",
    ]


def test_settings_of_an_inactive_scaler_are_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtype=bf16", "scaler.growth_interval=0"]) == 2
    assert "scaler.growth_interval=0: must be at least 1" in capsys.readouterr().err


def test_entries_of_lists_are_told_by_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model.blocks=[1,x]", "tracker.observers=[json.loads,Nope]"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "model.blocks.1=x: is not a number; numbers may be typed as 300, 1e-3 or 2**16",
        "tracker.observers.1=Nope: must be the dotted path of a class or function, such as my_pkg.Net",
    ]


def test_a_rule_over_a_whole_section_speaks_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaler.init_scale=2**20", "scaler.max_scale=2**10"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("scaler.init_scale=")
    assert "must lie within scaler.min_scale=1 and scaler.max_scale=1024" in message
