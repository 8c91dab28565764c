"""`config.yaml`: written to be read by people, read back as the very same config, secrets unread."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from ampx.config.errors import ConfigError
from ampx.config.experiment import ExperimentConfig
from ampx.config.load import dump_config, load_config, resolve, reveal, validate

Build = Callable[..., ExperimentConfig]

SECRETS = ["+model.key=${oc.env:WANDB_API_KEY}", "+model.header='Bearer ${oc.env:MY_TOKEN,none}'"]
CUSTOM = ["model=custom", "model._target_=my_pkg.Net"]


@pytest.fixture(scope="module")
def values() -> dict[str, object]:
    from hydra import compose, initialize_config_dir

    from ampx.run import conf_dir

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return resolve(compose("config", CUSTOM))


def test_the_file_is_in_the_order_of_conf_config_yaml(experiment: Build) -> None:
    lines = [line.partition(":")[0] for line in dump_config(experiment()).splitlines() if line[:1].isalpha()]
    assert lines == list(ExperimentConfig.model_fields)
    assert "data:\n  kind: digits\n" in dump_config(experiment())


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_characters="$", exclude_categories=["C"]))
    | st.sampled_from(["1e-3", "2**16", "off", "null", "~", "1_000", "0x1F", "2001-01-01", "???", "", " a "]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]\w{0,5}", fullmatch=True), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(argument=plain)
def test_any_argument_of_a_users_own_class_survives_the_file(
    argument: object, values: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A text like a number stays a text. Seen to fail with PyYAML's dumper, which leaves it bare."""
    config = validate({**values, "model": {"kind": "custom", "_target_": "my_pkg.Net", "argument": argument}})
    path = tmp_path_factory.mktemp("trial") / "config.yaml"
    path.write_text(dump_config(config))
    loaded = load_config(path).model_dump()["model"]["argument"]
    assert (loaded, repr(loaded)) == (argument, repr(argument))


def test_a_number_typed_into_the_file_by_hand_is_a_number(values: dict[str, object], tmp_path: Path) -> None:
    """Seen to fail with PyYAML's loader, to which 1e-3 is a text."""
    config = validate({**values, "model": {"kind": "custom", "_target_": "my_pkg.Net", "argument": 0.5}})
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config).replace("argument: 0.5", "argument: 1e-3"))
    assert load_config(path).model_dump()["model"]["argument"] == 1e-3


def test_a_secret_stays_unread_in_the_parent_and_in_the_file(
    experiment: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail without `secrets_unread`."""
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    monkeypatch.setenv("MY_TOKEN", "quiet")
    config = experiment(*CUSTOM, *SECRETS, "+model.again=${model.key}", "+model.home=${oc.env:HOME}")
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert "hush" not in path.read_text()
    assert "quiet" not in path.read_text()
    assert load_config(path) == config
    revealed = reveal(load_config(path)).model_dump()["model"]
    assert (revealed["key"], revealed["again"], revealed["header"]) == ("hush", "hush", "Bearer quiet")
    assert "${" not in config.model_dump()["model"]["home"]


def test_a_secret_that_is_not_set_where_it_is_needed_is_named(
    experiment: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("MY_TOKEN", raising=False)
    config = experiment(*CUSTOM, *SECRETS)
    with pytest.raises(
        ConfigError, match=r"model.key=\${oc.env:WANDB_API_KEY}: .*WANDB_API_KEY' not found; set it"
    ):
        reveal(config)
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    assert reveal(config).model_dump()["model"]["header"] == "Bearer none"


def test_reading_the_environment_is_as_before_afterwards(
    experiment: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment(*CUSTOM, *SECRETS)
    monkeypatch.setenv("MY_TOKEN", "quiet")
    assert OmegaConf.create({"a": "${oc.env:MY_TOKEN}"}).a == "quiet"


def test_a_file_with_an_unknown_setting_is_refused(experiment: Build, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(experiment()).replace("grad_accumulation:", "grad_accumulations:"))
    with pytest.raises(
        ConfigError, match=r"train.grad_accumulations=1: .*did you mean train.grad_accumulation\?"
    ):
        load_config(path)
