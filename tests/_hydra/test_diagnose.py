"""What is wrong with an override, said in one line before anything is written."""

from pathlib import Path

import pytest

from ampx.run import main, put_plugins_on_path

put_plugins_on_path()

WRONG = {
    # keys
    "scaler.growth_intervall=3": "there is no such setting; did you mean scaler.growth_interval?",
    "scalar.growth_interval=3": "there is no such setting; did you mean scaler.growth_interval?",
    "growth_interval=3": "there is no such setting; did you mean scaler.growth_interval?",
    "max_steps=3": "there is no such setting; did you mean train.max_steps?",
    "zzz.qqq=3": "there is no such setting; --cfg job lists them all",
    "train.max_steps.x=3": "train.max_steps is one value, not a section; set it without .x",
    "+scaler.kind=static": "is there already; type it without the +",
    "~train.max_steps": "a setting cannot be removed; set it to null, or its group to none",
    # options and groups
    "scaler=dynamc": "scaler has no such option; did you mean dynamic?",
    "scaler=3": "scaler has no such option; choose one of conservative, dynamic",
    "scalar=dynamic": "there is no such setting; did you mean scaler?",
    "modle=mlp": "there is no such setting; did you mean model?",
    "experiment=lstm_txt": "experiment has no such option; did you mean lstm_text?",
    "+scaler=static": "scaler is chosen already; type it without the +",
    "bf16": "settings are typed as name=value; did you mean dtype=bf16?",
    "whatever": "settings are typed as name=value",
    # another option's setting
    "scaler=static scaler.growth_interval=3": "scaler=static has no growth_interval; choose scaler=dynamic",
    "model._target_=my_pkg.Net": "model=resnet_small has no _target_; choose model=custom, or leave it out",
    "scaler=none scaler.enabled=true": "scaler=none has no enabled; choose scaler=dynamic",
    "model=custom model._target_=m.N model.width=3": "an argument of your own is added with a +; type +",
    # grammar
    "tags=[a,b": "cannot be read (no viable alternative at input '[a,b'); put a value",
    "name=a=b": "cannot be read",
    "dtype=bf16,fp16": "goes through several values; add -m, or type dtype=[bf16,fp16] for a list",
    "seed=range(3)": "goes through several values; add -m",
    # what Hydra alone would ignore
    "hydra/launcher=joblib": "ampx starts trials itself; type launcher=joblib",
    "hydra/sweeper=basic": "has no effect in ampx; use -m with lists of values",
    "hydra.run.dir=/tmp": "ampx uses Hydra to compose and for nothing else; leave it out",
    "++resume=/tmp": "no file may say so; type resume=<trial> as an argument",
}


@pytest.mark.parametrize("typed", WRONG)
def test_a_wrong_override_is_one_line_that_shows_the_way_out(
    typed: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(typed.split(" ")) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert f"{typed.split(' ')[-1].lstrip('+')}: {WRONG[typed]}" in shown.err
    assert not list(tmp_path.iterdir())


def test_every_mistake_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaler=dynamc", "train.max_step=3", "bf16"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "bf16: settings are typed as name=value; did you mean dtype=bf16?",
        "scaler=dynamc: scaler has no such option; did you mean dynamic?",
        "train.max_step=3: there is no such setting; did you mean train.max_steps?",
    ]


def test_flags_that_show_something_explain_mistakes_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "job", "scaler=dynamc"]) == 2
    assert "did you mean dynamic?" in capsys.readouterr().err


def test_a_fault_in_a_file_of_the_users_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMPX_CONF", str(tmp_path))
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "typo.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /scaler: dynamc\n"
    )
    (tmp_path / "experiment" / "bad.yaml").write_text("a: [1\n")
    assert main(["experiment=typo"]) == 2
    message = capsys.readouterr().err
    assert "Could not find 'scaler/dynamc'" in message
    assert len(message.splitlines()) == 1
    assert main(["experiment=bad"]) == 2
    assert "bad.yaml" in capsys.readouterr().err


def test_an_unset_variable_is_named_and_the_secret_looking_one_is_not_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    assert main(["name=${oc.env:NOT_SET}", "tags=[${oc.env:MY_API_KEY}]"]) == 2
    assert (
        capsys.readouterr().err
        == "name=${oc.env:NOT_SET}: Environment variable 'NOT_SET' not found; set it\n"
    )


def test_a_value_without_a_default_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data=imagefolder"]) == 2
    assert capsys.readouterr().err == "data.root=???: has no default; add data.root=<value>\n"
