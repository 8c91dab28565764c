"""`resume=<trial>`: in place where no number changes, else a fork; the stored config is what counts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ampx._hydra.compose import compose_requests
from ampx.config.load import Request, load_config
from ampx.run import conf_dir, main, put_plugins_on_path
from ampx.trial import Trial

put_plugins_on_path()

MakeTrial = Callable[..., Trial]


def requests(*arguments: str) -> list[Request]:
    return compose_requests(arguments, conf_dir())


def test_resume_alone_continues_in_place_with_the_stored_config(make_trial: MakeTrial) -> None:
    trial = make_trial("scaler=hysteresis", "scaler.hysteresis=5", "optimizer.lr=1e-5", name="mine+2")
    [request] = requests(f"resume={trial.path}")
    assert (request.resume, request.is_fork) == (trial.path, False)
    assert request.config == load_config(trial.config_path)


def test_a_relative_path_is_one_of_the_current_directory(
    make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(name="here")
    monkeypatch.chdir(trial.path.parent)
    assert requests("resume=here")[0].resume == trial.path


def test_launcher_tracker_and_observe_are_replaced_in_place(
    make_trial: MakeTrial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "tracker").mkdir(parents=True)
    (tmp_path / "conf" / "tracker" / "mine.yaml").write_text("kind: none\nobservers: [json.JSONDecoder]\n")
    monkeypatch.setenv("AMPX_CONF", str(tmp_path / "conf"))
    trial = make_trial("scaler=static", "dtype=fp16")
    for arguments in (
        ["launcher=local", "tracker=mine"],
        ["tracker.observers=[json.JSONDecoder]"],
        ["tracker=none", "tracker.observers=[json.JSONDecoder]"],
    ):
        [request] = requests(f"resume={trial.path}", *arguments)
        assert (request.resume, request.is_fork) == (trial.path, False)
        [observer] = request.config.tracker.observers
        assert observer.target == "json.JSONDecoder"
        stored = load_config(trial.config_path)
        assert request.config.model_copy(update={"tracker": stored.tracker}) == stored


def test_a_changed_value_forks_on_top_of_the_stored_config(make_trial: MakeTrial) -> None:
    trial = make_trial("scaler=hysteresis", "dtype=fp16", "optimizer.lr=1e-5")
    before = sorted(trial.path.rglob("*")), trial.read_config_text()
    [request] = requests(f"resume={trial.path}", "scaler.hysteresis=2**3", "train.max_steps=2000")
    assert (request.resume, request.is_fork) == (trial.path, True)
    assert request.config.resume == str(trial.path)  # the fork's own config.yaml says where it comes from
    stored = load_config(trial.config_path)
    assert request.config.optimizer == stored.optimizer
    assert request.config.scaler == stored.scaler.model_copy(update={"hysteresis": 8})
    assert request.config.train == stored.train.model_copy(update={"max_steps": 2000, "max_epochs": None})
    assert before == (sorted(trial.path.rglob("*")), trial.read_config_text())


def test_a_sweep_over_a_stored_trial_forks_it_once_for_each_value(make_trial: MakeTrial) -> None:
    trial = make_trial()
    forks = requests("-m", f"resume={trial.path}", "optimizer.lr=1e-3,1e-4")
    assert [fork.is_fork and fork.is_sweep for fork in forks] == [True, True]
    assert [fork.config.optimizer.model_dump()["lr"] for fork in forks] == [1e-3, 1e-4]


def test_a_fork_of_a_custom_model_takes_arguments_of_its_own(make_trial: MakeTrial) -> None:
    trial = make_trial("model=custom", "model._target_=fractions.Fraction", "+model.numerator=64")
    [fork] = requests(f"resume={trial.path}", "+model.denominator=10")
    assert fork.config.model.model_dump() == {
        "kind": "custom",
        "target": "fractions.Fraction",
        "numerator": 64,
        "denominator": 10,
    }


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["scaler=static"],
            "scaler=static with resume: a fork keeps the trial's options; change values (scaler.<",
        ),
        (["experiment=lstm_text"], "experiment=lstm_text with resume: a fork keeps the trial's options"),
        (["launcher=nowhere"], "launcher=nowhere: launcher has no such option; choose one of local"),
        (["train.max_step=3"], "train.max_step=3: there is no such setting; did you mean train.max_steps?"),
        (
            ["scaler.growth_interval=3"],
            "scaler.growth_interval=3: scaler=static has no growth_interval; choose",
        ),
        (["train.max_steps=0"], "train.max_steps=0: must be at least 1"),
        (["dtype.compute_dtype=float16", "scaler.enabled=false"], "gradients below 6e-8 vanish"),
        (["--cfg", "job"], "--cfg with resume: the trial's config.yaml has its settings"),
        (["seed=1,2"], "seed=1,2: goes through several values; add -m"),
    ],
)
def test_what_a_fork_cannot_have_is_refused(
    overrides: list[str], message: str, make_trial: MakeTrial, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = make_trial("scaler=static")
    assert main([f"resume={trial.path}", *overrides]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_what_is_no_trial_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "nothing", tmp_path / "file", tmp_path):
        assert main([f"resume={path}"]) == 2
        assert f"resume={path}: is no trial: " in capsys.readouterr().err


def test_a_damaged_config_is_refused(make_trial: MakeTrial, capsys: pytest.CaptureFixture[str]) -> None:
    trial = make_trial()
    for text, message in (
        ("a: [1\n", "cannot be read"),
        ("- 1\n", "holds no settings"),
        ("", "seed=null: has no"),
    ):
        trial.config_path.write_text(text)
        assert main([f"resume={trial.path}"]) == 2
        assert message in capsys.readouterr().err
