"""One label per sample, from batches `(x, labels)` and a model that gives logits (B, classes)."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ampx.tasks.task import Phase


@final
class Classification:
    """Cross entropy to train; loss without smoothing, accuracy and top-k accuracy to evaluate."""

    monitor: tuple[str, Literal["max", "min"]] = ("accuracy", "max")

    def __init__(self, *, label_smoothing: float, top_k: int) -> None:
        self._label_smoothing = label_smoothing
        self._top_k = top_k

    def phases(self, model: nn.Module, batch: Any) -> Iterator[Phase]:
        x, labels = _parts(batch)
        yield Phase("main", forward=partial(model, x), loss=partial(self._loss, labels))

    def optimizers(self, model: nn.Module) -> dict[str, Iterable[nn.Parameter]]:
        return {"main": model.parameters()}

    def evaluate(self, model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
        """A `top_k` above the number of classes means all of them."""
        count, top_k, sums = 0, 1, torch.zeros(3)
        for batch in batches:
            x, labels = _parts(batch)
            logits = _checked(model(x)).float()  # sums over a set overflow float16
            top_k = min(self._top_k, logits.shape[1])
            sums = sums.to(logits.device) + _sums(logits, labels, top_k)
            count += len(labels)
        if count == 0:
            raise ValueError(
                "data: there is no validation batch to evaluate; give the validation set samples"
            )
        loss, accuracy, top_k_accuracy = (sums / count).tolist()
        top = {f"accuracy_top{top_k}": top_k_accuracy} if top_k > 1 else {}
        return {"loss": loss, "accuracy": accuracy, **top}

    def _loss(self, labels: Tensor, logits: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss = F.cross_entropy(_checked(logits), labels, label_smoothing=self._label_smoothing)
        accuracy = (logits.argmax(1) == labels).float().mean()  # a share needs a float type
        return loss, {"accuracy": accuracy}


def _parts(batch: Any) -> tuple[Any, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError(
            f"task=classification: takes batches (x, labels), but the data gave a {type(batch).__name__}; "
            "choose task=language_modeling for data=text, or a task of your own"
        )
    return batch[0], batch[1]


def _checked(logits: Any) -> Tensor:
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"task=classification: takes logits (B, classes), but the model gave {shape}; "
            "wrap the model to return them, or write a task of your own"
        )
    return logits


def _sums(logits: Tensor, labels: Tensor, top_k: int) -> Tensor:
    """Summed loss, hits and top-k hits of a batch, on its device."""
    loss = F.cross_entropy(logits, labels, reduction="sum")
    hits = logits.topk(top_k).indices == labels.unsqueeze(1)
    return torch.stack([loss, hits[:, 0].sum().float(), hits.sum().float()])
