"""Rules of correct mixed precision that only a whole run can keep, through what a user's config assembles."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampx.spec import DataSpec
from ampx.tasks.task import Phase
from ampx.training.evaluate import evaluate
from ampx.trial import Trial
from ampx.worker import run_trial

Assemble = Callable[..., Any]
Make = Callable[..., Trial]
CUSTOM_DATA = ("data=custom", f"data._target_={__name__}.data", "schedule=none")
WATCHED = ("model=custom", f"model._target_={__name__}.Watched")
QUICK = ("train.log_every=1", "model=mlp", "data.batch_size=16", "train.max_epochs=null", "schedule=none")


def data() -> Any:
    """Six batches; `x[:, 0]` is a mark that `Watched` may act upon."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 8, 5, generator=generator)
    x[:, :, 0] = 0.0
    batches = list(zip(x, torch.randint(3, (6, 8), generator=generator), strict=True))
    return batches, batches[:2], DataSpec((5,), num_classes=3)


def bad_data() -> Any:
    """The second batch holds a NaN, the third makes one gradient infinite, the fourth makes one NaN."""
    train, val, spec = data()
    train[1][0][2, 2] = torch.nan
    train[2][0][:, 0] = torch.inf
    train[3][0][:, 0] = -torch.inf
    return train, val, spec


def autocast_depth() -> int:
    """How many autocast regions are open."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


@dataclasses.dataclass
class Log:
    """What the model, its backward and the optimizer saw, in order."""

    states: list[tuple[str, int, bool]] = dataclasses.field(default_factory=list)
    outputs: list[Tensor] = dataclasses.field(default_factory=list)

    def note(self, where: str) -> None:
        self.states.append((where, autocast_depth(), torch.is_autocast_enabled("cpu")))


class Seen(torch.autograd.Function):
    """The identity, which notes the autocast state of its forward and of its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log: Log) -> Tensor:
        ctx.log = log
        log.note("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.log.note("backward")
        return grad, None


class SeenUnderItsOwnRules(Seen):
    """The same, decorated as torch.amp asks of a Function that depends on autocast."""

    forward = staticmethod(torch.amp.custom_fwd(Seen.forward, device_type="cpu"))
    backward = staticmethod(torch.amp.custom_bwd(Seen.backward, device_type="cpu"))


class Poison(torch.autograd.Function):
    """The identity, whose gradient is what the mark says wherever that is not 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mark: Tensor) -> Tensor:
        ctx.save_for_backward(mark)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mark,) = ctx.saved_tensors
        value = torch.where(mark > 0, torch.inf, torch.nan)
        return torch.where(mark == 0, grad, value.to(grad.dtype)), None


class Watched(nn.Module):
    """Two layers and BatchNorm; `log` holds what was seen, `function` is the Function it goes through."""

    function: type[Seen] = Seen

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3, bias=False)
        self.bias = nn.Parameter(torch.zeros(3))
        self.log = Log()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.function.apply(self.inner(x[:, 1:]), self.log)
        logits = self.head(self.norm(hidden).relu())
        logits = logits + Poison.apply(self.bias, x[0, 0]).to(logits.dtype)  # autocast leaves additions alone
        self.log.outputs.append(logits)
        return logits


class WatchedUnderItsOwnRules(Watched):
    function = SeenUnderItsOwnRules


class Classified:
    """Classification that also notes the autocast state of its loss, and the gradient the loss gets."""

    def __init__(self) -> None:
        self.scales: list[float] = []

    def phases(self, model: nn.Module, batch: Any) -> Iterator[Phase]:
        x, labels = batch
        yield Phase("main", lambda: model(x), lambda logits: (self._loss(model, logits, labels), {}))

    def _loss(self, model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
        if isinstance(model, Watched):
            model.log.note("loss")
        loss = nn.functional.cross_entropy(logits, labels)
        loss.register_hook(lambda grad: self.scales.append(grad.item()))
        return loss

    def optimizers(self, model: nn.Module) -> dict[str, Any]:
        return {"main": model.parameters()}

    def evaluate(self, model: nn.Module, batches: Any) -> dict[str, float]:
        return {"batches": float(sum(1 for x, _ in batches if model(x) is not None))}


OWN_TASK = ("task=custom", f"task._target_={__name__}.Classified")


def parameters(run: Any) -> list[Tensor]:
    return [p.detach().clone() for p in run.state.setup.model.parameters()]


def test_the_scale_is_constant_within_an_effective_batch(assemble_run: Assemble) -> None:
    """INVARIANTS 4. Red when every micro-batch advances the scale: the parts then weigh 1 to 2."""
    run = assemble_run(
        *CUSTOM_DATA, *WATCHED, *OWN_TASK, "dtype=fp16", "train.grad_accumulation=3",
        "scaler.growth_interval=1", "scaler.init_scale=8",
    )  # fmt: skip
    records = run.attempt(2)
    assert [record.scale for record in records] == [8.0, 16.0]
    assert run.state.setup.task.scales == pytest.approx([8 / 3] * 3 + [16 / 3] * 3)


def test_the_scale_grows_after_exactly_so_many_clean_steps_in_a_row(assemble_run: Assemble) -> None:
    """INVARIANTS 9. Red when a skipped step leaves the count: growth comes at step 5 then, not at 6."""
    run = assemble_run(
        "data=custom", f"data._target_={__name__}.bad_data", "schedule=none", *WATCHED,
        "dtype=fp16", "scaler.init_scale=64", "scaler.growth_interval=2", "scaler.backoff_factor=0.25",
    )  # fmt: skip
    trace = [(record.scale, record.growth_tracker, record.applied) for record in run.attempt(12)]
    # bad batches are the attempts 1, 2, 3 and 7, 8, 9
    assert trace == [
        (64, 0, True), (64, 1, False), (16, 0, False), (4, 0, False), (1, 0, True), (1, 1, True),
        (2, 0, True), (2, 1, False), (1, 0, False), (1, 0, False), (1, 0, True), (1, 1, True),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_a_power_of_two_as_scale_changes_no_bit(dtype: str, assemble_run: Assemble) -> None:
    """INVARIANTS 11. Red when clipping, the norm or the moments see a gradient that is still scaled."""
    runs = [
        assemble_run(*CUSTOM_DATA, *WATCHED, f"dtype={dtype}", "scaler=static", "scaler.enabled=true",
                     f"scaler.init_scale={scale}", "train.clip_norm=0.1")
        for scale in ("2**11", "2**12")
    ]  # fmt: skip
    left, right = ([dataclasses.replace(record, scale=None) for record in run.attempt(6)] for run in runs)
    assert left == right
    assert all(torch.equal(*pair) for pair in zip(*map(parameters, runs), strict=True))


def test_a_seed_and_a_config_make_one_scale_trace(make_trial: Make) -> None:
    """INVARIANTS 15. Red when anything is drawn before the seed is set, such as the model's weights."""
    traces = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(hash(name))
        trial = make_trial(*QUICK, "dtype=fp16", "scaler.init_scale=2**24", "scaler.growth_interval=2",
                           "train.max_steps=15", f"seed={seed}", name=name)  # fmt: skip
        assert run_trial(trial).state == "completed"
        traces.append(trial.read_jsonl("steps.jsonl"))
    assert traces[0] == traces[1] != traces[2]
    assert len({record["scale"] for record in traces[0]}) > 2


def test_one_autocast_region_per_forward_and_none_around_backward_and_step(assemble_run: Assemble) -> None:
    """INVARIANTS 16. Red when `_backward` runs inside a region, or one region holds both micro-batches."""
    run = assemble_run(*CUSTOM_DATA, *WATCHED, *OWN_TASK, "dtype=bf16", "train.grad_accumulation=2")
    log = run.state.setup.model.log
    (optimizer,) = run.state.optimizers().values()
    optimizer.register_step_pre_hook(lambda *_arguments: log.note("step"))
    run.attempt(1)
    micro_batch = [("forward", 1, True), ("loss", 1, True), ("backward", 0, False)]
    assert log.states == [*micro_batch, *micro_batch, ("step", 0, False)]


def test_each_forward_computes_with_the_weights_of_its_own_step(assemble_run: Assemble) -> None:
    """INVARIANTS 16, BUGS 11. Red when a region outlives the step: its cache keeps the old cast weights."""
    run = assemble_run(*CUSTOM_DATA, *WATCHED, "dtype=bf16", "optimizer=sgd", "debug.overfit_batches=1")
    first, second = run.attempt(2)
    assert first.loss != second.loss


def test_a_custom_function_sees_the_same_autocast_forward_and_backward(assemble_run: Assemble) -> None:
    """INVARIANTS 21. Red when `backward_region` does more than switch a task's open region off."""
    run = assemble_run(
        *CUSTOM_DATA, "model=custom", f"model._target_={__name__}.WatchedUnderItsOwnRules", "dtype=bf16"
    )
    run.attempt(1)
    assert [(where, on) for where, _, on in run.state.setup.model.log.states] == [
        ("forward", True), ("backward", True),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_loss_inside_equals_the_float_loss_outside_over_a_run(dtype: str, assemble_run: Assemble) -> None:
    """INVARIANTS 17. Red when forward_float forgets its cast, which forward_raw leaves out on purpose."""
    ends, records = {}, {}
    for scope in ("forward_loss", "forward_float", "forward_raw"):
        run = assemble_run(*CUSTOM_DATA, *WATCHED, f"dtype={dtype}", f"dtype.scope={scope}")
        records[scope], ends[scope] = run.attempt(6), parameters(run)
    assert records["forward_loss"] == records["forward_float"] != records["forward_raw"]
    assert all(map(torch.equal, ends["forward_loss"], ends["forward_float"]))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16),
     ("bf16_pure", torch.bfloat16), ("fp16_pure", torch.float16)],
)  # fmt: skip
@pytest.mark.parametrize("scope", ["forward_loss", "step"])
def test_evaluation_computes_in_the_declared_dtype_without_a_graph(
    dtype: str, expected: torch.dtype, scope: str, assemble_run: Assemble
) -> None:
    """INVARIANTS 22 and 37. Red when `evaluate` opens no autocast region, or no inference mode."""
    if scope == "step" and (dtype == "fp32" or "pure" in dtype):
        pytest.skip("no autocast, no scope")
    run = assemble_run(*CUSTOM_DATA, *WATCHED, *OWN_TASK, f"dtype={dtype}", f"dtype.scope={scope}")
    run.attempt(1)
    model, scaler = run.state.setup.model, run.state.scaler.state_dict()
    statistics = model.norm.running_mean.clone()
    model.log.outputs.clear()
    with run.state.setup.kernels.installed():
        assert evaluate(run.state.setup, run.state.ema) == {"batches": 2.0}
    assert [out.dtype for out in model.log.outputs] == [expected] * 2
    assert all(out.is_inference() and out.grad_fn is None for out in model.log.outputs)
    assert model.training
    assert torch.equal(model.norm.running_mean, statistics), "BatchNorm evaluated, not trained"
    assert run.state.scaler.state_dict() == scaler


def test_pure_bfloat16_rounded_to_nearest_stands_still_and_the_run_says_so(make_trial: Make) -> None:
    """INVARIANTS 24, BUGS 25: the share is measured. Red when the flush asks before it has compared."""
    trial = make_trial(*QUICK, "dtype=bf16_pure", "optimizer.lr=1e-6", "train.max_steps=4")
    run_trial(trial)
    (event,) = [event for event in trial.read_jsonl("events.jsonl") if event["kind"] == "stagnation"]
    assert 0.9 < event["unchanged_share"] <= 1.0
    assert "optimizer.rounding=stochastic" in event["advice"]


@pytest.mark.parametrize(
    "overrides",
    [["optimizer.rounding=stochastic"], ["optimizer.rounding=kahan"], ["dtype.masters=float32"]],
    ids=" ".join,
)
def test_where_no_update_is_lost_none_is_called_lost(overrides: list[str], make_trial: Make) -> None:
    """INVARIANTS 24. Red when the share is taken wherever parameters are low, whoever keeps the rest."""
    trial = make_trial(*QUICK, "dtype=bf16_pure", "optimizer.lr=1e-6", "train.max_steps=4", *overrides)
    run_trial(trial)
    assert "stagnation" not in {event["kind"] for event in trial.read_jsonl("events.jsonl")}


@pytest.mark.parametrize("rounding", ["stochastic", "kahan"])
def test_careful_rounding_moves_weights_that_nearest_leaves(rounding: str, assemble_run: Assemble) -> None:
    """INVARIANTS 24: 20 updates of 1e-4 on 64 weights of up to 0.5, half a step of which is up to 1e-3."""
    moved = {}
    for rule in ("nearest", rounding):
        run = assemble_run(
            *CUSTOM_DATA, *WATCHED, "dtype=bf16_pure", "optimizer=adam", "optimizer.lr=1e-4",
            f"optimizer.rounding={rule}",
        )  # fmt: skip
        before = run.state.setup.model.inner.weight.detach().clone()
        run.attempt(20)
        moved[rule] = (run.state.setup.model.inner.weight != before).float().mean().item()
    assert moved["nearest"] < 0.15
    assert moved[rounding] > 0.35


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "bf16_pure", "fp16_pure"])
def test_running_statistics_and_averages_are_float32_and_a_skip_leaves_them(
    dtype: str, assemble_run: Assemble
) -> None:
    """INVARIANTS 26 and 27. Red when storage casts BatchNorm, the EMA copies a dtype, or the guard is off."""
    run = assemble_run(
        "data=custom",
        f"data._target_={__name__}.bad_data",
        *WATCHED,
        f"dtype={dtype}",
        "train.ema_decay=0.999",
    )
    (first,) = run.attempt(1)
    norm, averages = run.state.setup.model.norm, run.state.ema.state_dict()["averages"]
    kept = {"mean": norm.running_mean, "var": norm.running_var, **averages}
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
    before = {name: tensor.clone() for name, tensor in kept.items()}
    bad = run.attempt(3)
    assert [record.applied for record in (first, *bad)] == [True, False, False, False]
    assert all(torch.equal(kept[name], tensor) for name, tensor in before.items())
    run.attempt(1)
    assert not torch.equal(norm.running_mean, before["mean"])
    assert not torch.equal(averages["head.weight"], before["head.weight"])


def many() -> Any:
    """70,000 samples in one batch, half of class 0: more than float16 can count."""
    x, labels = torch.ones(70_000, 5), torch.arange(70_000) % 2
    return [(x[:8], labels[:8])], [(x, labels)], DataSpec((5,), num_classes=3)


class Certain(nn.Module):
    """Gives the logits 1, 0, 0 to everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        nn.init.zeros_(self.layer.weight)
        self.layer.bias.data.copy_(torch.tensor([1.0, 0.0, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize("dtype", ["fp16", "fp16_pure"])
def test_metrics_over_more_samples_than_float16_can_count_are_right(
    dtype: str, assemble_run: Assemble
) -> None:
    """INVARIANTS 28. Red when the task sums in the dtype of the logits: the loss is inf."""
    run = assemble_run(
        "data=custom", f"data._target_={__name__}.many", "model=custom", f"model._target_={__name__}.Certain",
        f"dtype={dtype}",
    )  # fmt: skip
    with run.state.setup.kernels.installed():
        metrics = evaluate(run.state.setup, run.state.ema)
    assert metrics["accuracy"] == 0.5
    sum_error = 70_000 * torch.finfo(torch.float32).eps
    assert metrics["loss"] == pytest.approx(math.log(math.e + 2) - 0.5, rel=sum_error)


def test_the_float32_baseline_stands_in_the_manifest(make_trial: Make) -> None:
    """INVARIANTS 29. Red when assembly leaves the process as it finds it."""
    torch.set_float32_matmul_precision("medium")
    trial = make_trial(*QUICK, "dtype=fp32", "train.max_steps=1")
    run_trial(trial)
    manifest = trial.read_json("manifest.json")
    assert manifest is not None
    assert manifest["effective"]["baseline"] == {"matmul_precision": "highest", "significant_bits": 24}
    assert manifest["environment"]["float32_matmul_precision"] == "highest"
    assert manifest["environment"]["cudnn_allow_tf32"] is False


@pytest.mark.parametrize("gate", ["host", "device"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_bad_data_are_told_from_gradients_that_overflow(
    dtype: str, gate: str, assemble_run: Assemble
) -> None:
    """INVARIANTS 39. Red when the reason is read off the norm alone: the first is then nan_grad."""
    run = assemble_run(
        "data=custom", f"data._target_={__name__}.bad_data", *WATCHED, f"dtype={dtype}", f"train.gate={gate}"
    )
    reasons = [record.skip_reason for record in run.attempt(5)]
    assert reasons == [None, "nonfinite_loss", "inf_grad", "nan_grad", None]
