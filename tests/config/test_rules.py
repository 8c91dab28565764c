"""Settings that are right one by one and impossible together: each rule has its message and its way out."""

from collections.abc import Callable

import pytest

from ampx.config.errors import ConfigError
from ampx.config.experiment import ExperimentConfig
from ampx.config.rules import RULES, TRAINING_RULES, broken_rules, sweep_problem

Build = Callable[..., ExperimentConfig]
FP16_STORAGE = "dtype=fp16_pure dtype.masters=none scaler=none scaler.allow_unscaled=true"

BROKEN = {
    "text_goes_with_text": ("data=text", "data=text with model=resnet_small task=classification: "),
    "reduction_needs_ranks": (
        "dtype.reduce_dtype=float16",
        "dtype.reduce_dtype=float16 with distribution=none: .*use dtype.reduce_dtype=float32",
    ),
    "tf32_needs_cuda": (
        "dtype=tf32 device=cpu",
        "dtype.matmul_precision=high with device=cpu: .*use dtype=fp32, or device=cuda",
    ),
    "fast_kernels_need_cpu_float16": (
        "dtype=fp16 dtype.kernels=fast device=cuda",
        "dtype.kernels=fast with device=cuda: .*use dtype.kernels=auto, or device=cpu",
    ),
    "evaluation_needs_checkpoint": (
        "job=evaluate",
        "job=evaluate with checkpoint=null: .*add checkpoint=<trial>",
    ),
    "training_reads_no_checkpoint": (
        "checkpoint=old",
        "checkpoint=.*old with job=train: .*use resume=<trial>",
    ),
    "float16_needs_scaler": (
        "dtype=fp16 scaler=none",
        "dtype.compute_dtype=float16 with scaler=none: .*add scaler=dynamic, or scaler.allow_unscaled=true",
    ),
    "scaled_float16_needs_masters": (
        "dtype=fp16_pure dtype.masters=none optimizer=sgd",
        "dtype.masters=none with dtype.param_dtype=float16: .*use dtype.masters=float32, or dtype=fp16",
    ),
    "eps_survives_float16": (
        FP16_STORAGE,
        "optimizer.eps=1e-08 with dtype.param_dtype=float16 .*use optimizer.eps=1e-4, or dtype.masters=",
    ),
    "rounding_needs_bfloat16": (
        "dtype=bf16 optimizer.rounding=kahan",
        "optimizer.rounding=kahan with dtype.param_dtype=float32 .*use dtype=bf16_pure, or optimizer",
    ),
    "device_gate_needs_fused_step": (
        "train.gate=device optimizer.fused=false",
        "train.gate=device with optimizer.fused=false: .*use train.gate=auto",
    ),
    "training_ends": (
        "train.max_epochs=null schedule=none",
        "train.max_epochs=null with train.max_steps=null and train.max_time_s=null: .*set one of them",
    ),
    "schedule_knows_last_step": (
        "train.max_epochs=null train.max_time_s=60",
        "schedule=cosine with train.max_steps=null and train.max_epochs=null: .*set train.max_steps",
    ),
    "early_stop_mode_needs_metric": (
        "train.early_stop.mode=max",
        "train.early_stop.mode=max with train.early_stop.metric=null: .*add train.early_stop.metric=<name>",
    ),
}

POSSIBLE = [
    "model=gpt data=text task=language_modeling",
    "model=custom model._target_=m.N data=text task=language_modeling",
    "dtype=tf32 device=cuda",
    "dtype=fp16 dtype.kernels=fast device=cpu",
    "dtype=bf16 dtype.islands=['Linear:float16'] dtype.kernels=fast",
    "job=evaluate checkpoint=old",
    "job=evaluate checkpoint=old dtype=fp16 scaler=none",
    "dtype=fp16 scaler=none scaler.allow_unscaled=true",
    "dtype=fp16 scaler=static",
    "dtype=bf16 scaler=none",
    "dtype=fp16_pure",
    f"{FP16_STORAGE} optimizer.eps=1e-4",
    f"{FP16_STORAGE} optimizer=sgd",
    "dtype=bf16_pure optimizer.rounding=stochastic",
    "train.gate=device optimizer.fused=true",
    "train.gate=host optimizer=custom optimizer._target_=torch.optim.RMSprop",
    "train.max_epochs=null train.max_time_s=60 schedule=none",
    "train.max_epochs=null train.max_steps=9",
    "train.early_stop.metric=accuracy train.early_stop.mode=max",
]


def test_every_rule_is_tested() -> None:
    assert [rule.__name__ for rule in (*RULES, *TRAINING_RULES)] == list(BROKEN)


@pytest.mark.parametrize("rule", BROKEN)
def test_an_impossible_pair_is_refused_with_the_way_out(rule: str, experiment: Build) -> None:
    overrides, message = BROKEN[rule]
    with pytest.raises(ConfigError, match=f"^{message}") as refused:
        experiment(*overrides.split())
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize("overrides", POSSIBLE)
def test_its_neighbour_is_possible(overrides: str, experiment: Build) -> None:
    assert broken_rules(experiment(*overrides.split())) == []


def test_a_disabled_scaler_names_the_switch(experiment: Build) -> None:
    with pytest.raises(ConfigError, match=r"with scaler.enabled=false: .*use scaler.enabled=auto"):
        experiment("dtype=fp16", "scaler.enabled=false")


def test_fast_kernels_are_refused_where_there_is_no_float16(experiment: Build) -> None:
    """Promise 1: nothing is silently substituted, so `fast` never means native."""
    for name, compute_dtype in (("bf16", "bfloat16"), ("fp32", "float32")):
        message = f"^dtype.kernels=fast with dtype.compute_dtype={compute_dtype}: .*auto, or dtype=fp16"
        with pytest.raises(ConfigError, match=message):
            experiment(f"dtype={name}", "dtype.kernels=fast")


@pytest.mark.parametrize("dtype", ["dtype=fp32", FP16_STORAGE, "dtype=bf16_pure dtype.masters=float32"])
def test_careful_rounding_of_one_optimizer_is_refused_too(dtype: str, experiment: Build) -> None:
    """Red when the rule reads `optimizer.rounding` alone: the override would do nothing, silently."""
    with pytest.raises(ConfigError, match=r"^optimizer.by_name.a.rounding=kahan with dtype.param_dtype="):
        experiment(*dtype.split(), "optimizer=sgd", "+optimizer.by_name.a.rounding=kahan")


def test_an_island_in_float16_needs_a_scaler_too(experiment: Build) -> None:
    with pytest.raises(ConfigError, match=r"^dtype.islands=\[Linear:float16\] with scaler=none: "):
        experiment("dtype.islands=['Linear:float16']", "scaler=none")


def test_a_users_own_optimizer_or_schedule_needs_the_host_gate(experiment: Build) -> None:
    for group in ("optimizer", "schedule"):
        with pytest.raises(ConfigError, match=f"train.gate=device with {group}=custom"):
            experiment("train.gate=device", f"{group}=custom", f"{group}._target_=my_pkg.Own")


def test_pure_float16_with_masters_off_and_a_vanishing_eps_breaks_two_rules(experiment: Build) -> None:
    with pytest.raises(ConfigError) as refused:
        experiment("dtype=fp16_pure", "dtype.masters=none")
    assert [problem.partition(" ")[0] for problem in refused.value.problems] == [
        "dtype.masters=none",
        "optimizer.eps=1e-08",
    ]


def test_the_trials_of_a_sweep_share_name_place_and_launcher(experiment: Build) -> None:
    same = [experiment("name=a", "seed=1"), experiment("name=a", "seed=2")]
    assert sweep_problem(same) is None
    assert sweep_problem([*same, experiment("name=b")]) == (
        "name=a with name=b: a sweep has one name; start a sweep for each"
    )
