"""Evaluation: averaged weights, every mode put back, limits kept, and nothing that training would notice."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampx.spec import DataSpec
from ampx.tasks.classification import Classification
from ampx.training.ema import NoEma
from ampx.training.evaluate import evaluate

Assemble = Callable[..., Any]
CUSTOM = (
    "data=custom", f"data._target_={__name__}.data", "model=custom",
    f"model._target_={__name__}.PartlyFrozen", "schedule=none", "dtype=fp32",
)  # fmt: skip


def data() -> Any:
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 5, generator=generator), torch.tensor([0, 1, 2, 0])) for _ in range(5)]
    return batches, batches, DataSpec((5,), num_classes=3)


class PartlyFrozen(nn.Module):
    """Its dropout is switched off for good, as a fine-tuned part is."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Dropout(0.5).eval()
        self.active = nn.Dropout(0.5)
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.active(self.layer(self.frozen(x)))


class Counted(Classification):  # pyright: ignore[reportGeneralTypeIssues]
    """Says how many batches it was given."""

    def __init__(self) -> None:
        super().__init__(label_smoothing=0.0, top_k=1)

    def evaluate(self, model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
        return {"batches": float(sum(1 for _ in batches))}


class Broken(Counted):
    def evaluate(self, model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
        raise RuntimeError("no metric today")


COUNTED = ("task=custom", f"task._target_={__name__}.Counted")


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_dropout_is_off_inside_and_every_module_is_as_before(assemble_run: Assemble) -> None:
    """Red when `train()` is called on the whole model: that wakes a part that was frozen."""
    run = assemble_run(*CUSTOM)
    model = run.state.setup.model
    model.frozen.eval()
    before = modes(model)
    first, second = (evaluate(run.state.setup, NoEma()) for _ in range(2))
    assert first == second
    assert modes(model) == before


def test_modes_and_weights_come_back_when_a_task_fails(assemble_run: Assemble) -> None:
    """Red without the `finally` of either."""
    run = assemble_run(*CUSTOM, "train.ema_decay=0.5", "task=custom", f"task._target_={__name__}.Broken")
    run.attempt(2)
    model = run.state.setup.model
    before, weight = modes(model), model.layer.weight.detach().clone()
    with pytest.raises(RuntimeError, match="no metric today"):
        evaluate(run.state.setup, run.state.ema)
    assert modes(model) == before
    assert torch.equal(model.layer.weight, weight)


def test_it_measures_the_average_where_there_is_one(assemble_run: Assemble) -> None:
    """Red when the average is swapped in after the forward."""
    run = assemble_run(*CUSTOM, "train.ema_decay=0.9", "optimizer.lr=0.1")
    run.attempt(10)
    averaged, own = evaluate(run.state.setup, run.state.ema), evaluate(run.state.setup, NoEma())
    assert averaged["loss"] != own["loss"]
    with torch.no_grad():
        for name, average in run.state.ema.state_dict()["averages"].items():
            run.state.setup.model.get_parameter(name).copy_(average)
    assert evaluate(run.state.setup, NoEma()) == averaged


def test_a_limit_and_batches_of_ones_own_are_honoured(assemble_run: Assemble) -> None:
    run = assemble_run(*CUSTOM, *COUNTED)
    assert evaluate(run.state.setup, NoEma()) == {"batches": 5.0}
    assert evaluate(run.state.setup, NoEma(), data()[0][:2]) == {"batches": 2.0}
    limited = assemble_run(*CUSTOM, *COUNTED, "train.limit_batches=3")
    assert evaluate(limited.state.setup, NoEma()) == {"batches": 3.0}


def test_training_goes_on_as_if_nothing_had_been_evaluated(assemble_run: Assemble) -> None:
    """Red when a batch of the validation split draws from the training's generators."""
    plain, evaluated = (assemble_run(*CUSTOM) for _ in range(2))
    torch.manual_seed(0)
    expected = plain.attempt(4)
    torch.manual_seed(0)
    records = evaluated.attempt(2)
    evaluate(evaluated.state.setup, NoEma())
    assert [*records, *evaluated.attempt(2)] == expected
