"""A sweep is every combination, each composed exactly as Hydra alone would compose it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from ampx._hydra.compose import compose_requests
from ampx._hydra.sweep import Sweep
from ampx.config.errors import ConfigError
from ampx.config.load import Request
from ampx.run import conf_dir, main, put_plugins_on_path

put_plugins_on_path()


def requests(*arguments: str) -> list[Request]:
    return compose_requests(arguments, conf_dir())


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConfigLoader]:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "told.yaml").write_text(
        "# @package _global_\nname: ${hydra:job.override_dirname}\ntags: ${hydra:overrides.task}\n"
    )
    monkeypatch.setenv("AMPX_CONF", str(tmp_path))
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


def test_every_combination_is_one_request(loader: ConfigLoader) -> None:
    sweep = Sweep(
        loader, ["seed=range(2)", "dtype=bf16,fp16", "train.max_steps=choice(2**3,5)", "seed=1,2"], []
    )
    assert len(sweep.trials) == 8
    assert sweep.trials[0] == ("seed=1", "dtype=bf16", "train.max_steps=2**3")  # the last `seed` holds
    assert Sweep(loader, ["seed=1,1"], []).trials == [("seed=1",)]


def test_a_glob_leaves_out_the_option_none() -> None:
    swept = requests("-m", "experiment=glob(*)")
    assert len(swept) >= 2
    assert all(request.is_sweep for request in swept)
    assert ("experiment=none",) not in [request.overrides for request in swept]


@pytest.mark.parametrize(
    "overrides",
    [
        ["dtype=bf16,fp16", "scaler.growth_interval=100,200", "seed=1,2"],
        ["scaler=dynamic,static", "scaler.init_scale=2**4,2**5", "tags=[a,${seed}]"],
        ["+tracker.extra.deep=1,2", "tracker={observers:[my.Obs]}"],
        ["experiment=fp16_hysteresis,lstm_text", "debug=one_batch", "++train.max_steps=3,4", "name=x"],
        ["~debug.profile", "optimizer.betas=[0.8,0.9],[0.9,0.99]"],
        ["experiment=told", "seed=1,2", "+model.note=${hydra:runtime.choices.dtype}"],
    ],
)
def test_each_trial_is_composed_as_hydra_alone_would(overrides: list[str], loader: ConfigLoader) -> None:
    """Seen to fail without `_say_what_was_typed`, and when `+` and `~` are not told from a change."""
    master = loader.load_configuration("config", ["hydra.mode=MULTIRUN"], RunMode.MULTIRUN)
    sweep = Sweep(loader, overrides, [])
    for trial, config in zip(sweep.trials, sweep.compose(master), strict=True):
        ours = OmegaConf.to_container(config, resolve=True)
        alone = loader.load_sweep_config(master, list(trial))
        HydraConfig.instance().set_config(alone)
        expected = OmegaConf.to_container(
            OmegaConf.masked_copy(alone, [key for key in alone if key != "hydra"]), resolve=True
        )
        assert ours == expected


def test_the_time_is_the_same_for_every_trial() -> None:
    """`name=${now:…}` would otherwise be several names. Seen to fail without `copy_cache`."""
    swept = requests("-m", "seed=1,2", "tags=['${now:%f}']")
    assert len({request.config.tags for request in swept}) == 1


def test_a_sweep_that_a_preset_declares_needs_no_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "intervals.yaml").write_text(
        "# @package _global_\n"
        'hydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      scaler.growth_interval: "100,200"\n'
    )
    monkeypatch.setenv("AMPX_CONF", str(tmp_path))
    swept = requests("experiment=intervals", "dtype=fp16")
    assert [request.config.scaler.model_dump()["growth_interval"] for request in swept] == [100, 200]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scaler.growth_interval=interval(1,9)"], "an interval has no values to go through; list them"),
        (["seed=glob(*)"], "seed=glob(*): matches nothing; seed has no options: it is not a group"),
        (["experiment=glob(x*)"], "experiment=glob(x*): matches nothing; experiment has fp16_hysteresis"),
        (
            ["dtype=bf16,fp17"],
            "the trial dtype=fp17 is impossible:\ndtype=fp17: dtype has no such option; did you",
        ),
        (
            ["scaler=static,dynamic", "scaler.growth_interval=3"],
            "the trial scaler=static scaler.growth_interval=3 is impossible:\nscaler.growth_interval=3: ",
        ),
        (
            ["dtype=bf16,fp16", "scaler=dynamic,none"],
            "the trial dtype=fp16 scaler=none is impossible:\ndtype.compute_dtype=float16 with scaler=none",
        ),
        (["name=a,b"], "name=a with name=b: a sweep has one name; start a sweep for each"),
        (["scaler.growth_intervall=1,2"], "did you mean scaler.growth_interval?"),
    ],
)
def test_no_trial_starts_unless_all_are_possible(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", *arguments]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


def test_a_launcher_that_hydra_would_ignore_inside_a_swept_preset_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUGS 47. Seen to fail without `_refuse_other_plugins`."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "hydra" / "launcher").mkdir(parents=True)
    (tmp_path / "hydra" / "launcher" / "other.yaml").write_text("_target_: hydra_plugins.other.Launcher\n")
    (tmp_path / "experiment" / "launched.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /hydra/launcher: other\n"
    )
    monkeypatch.setenv("AMPX_CONF", str(tmp_path))
    for arguments in (["-m", "experiment=launched,lstm_text"], ["experiment=launched"]):
        with pytest.raises(
            ConfigError, match="hydra/launcher=other: has no effect in ampx; use launcher=<option>"
        ):
            requests(*arguments)
