"""Predicting the next token, from batches int64 (B, T) and a model that gives logits (B, T - 1, V)."""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampx.tasks.task import Phase


@final
class LanguageModeling:
    """Cross entropy of each token but the first, given those before; evaluation averages over tokens."""

    monitor: tuple[str, Literal["max", "min"]] = ("loss", "min")

    def phases(self, model: nn.Module, batch: Any) -> Iterator[Phase]:
        tokens_BT = _checked(batch)
        yield Phase("main", forward=partial(model, tokens_BT[:, :-1]), loss=partial(_loss, tokens_BT[:, 1:]))

    def optimizers(self, model: nn.Module) -> dict[str, Iterable[nn.Parameter]]:
        return {"main": model.parameters()}

    def evaluate(self, model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
        count, summed = 0, torch.zeros(())
        for batch in batches:
            tokens_BT = _checked(batch)
            logits_BTV = model(tokens_BT[:, :-1]).float()  # a sum over many tokens overflows float16
            targets = tokens_BT[:, 1:]
            loss = F.cross_entropy(logits_BTV.flatten(0, 1), targets.flatten(), reduction="sum")
            summed = summed.to(loss.device) + loss
            count += targets.numel()
        if count == 0:
            raise ValueError(
                "data: there is no validation batch to evaluate; give the validation set samples"
            )
        loss = summed.item() / count
        return {"loss": loss, "perplexity": _exp(loss)}


def _loss(targets: Tensor, logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), {}


def _exp(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _checked(batch: Any) -> Tensor:
    if not isinstance(batch, Tensor) or batch.dtype != torch.int64 or batch.ndim != 2:
        kind = f"{batch.dtype} {tuple(batch.shape)}" if isinstance(batch, Tensor) else type(batch).__name__
        raise ValueError(
            f"task=language_modeling: takes batches int64 (B, T), but the data gave {kind}; "
            "choose data=text, task=classification for labelled images, or a task of your own"
        )
    return batch
