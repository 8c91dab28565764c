"""Language modelling on one text: bytes or characters, cut into windows; the end of the text validates."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ampx.config.data import TextSettings
from ampx.data.arrays import ArraySource, Fetch
from ampx.data.order import training_order, validation_order
from ampx.data.splits import Splits
from ampx.spec import DataSpec


def text(settings: TextSettings, seed: int) -> Splits:
    """Batches int64 (B, context + 1): the model sees `context` tokens and predicts the successor of each.

    `data.path=null` is the text of CPython's `pydoc_data.topics`, which differs between Python versions.
    """
    tokens, vocab_size = _TOKENIZERS[settings.tokenizer](_read(settings.path))
    num_train = len(tokens) - round(len(tokens) * settings.val_fraction)
    train, val = (_windows(part, settings.context) for part in (tokens[:num_train], tokens[num_train:]))
    if not len(train) or not len(val):
        raise ValueError(
            f"data.context={settings.context}: one token more than that must fit into each part of the text, "
            f"which have {num_train} to train and {len(tokens) - num_train} to validate; lower data.context, "
            "change data.val_fraction, or give a longer data.path"
        )
    return Splits(
        train=ArraySource(training_order(settings, len(train), seed), _tokens_of(train)),
        val=ArraySource(validation_order(settings, len(val)), _tokens_of(val)),
        spec=DataSpec(input_shape=(settings.context,), vocab_size=vocab_size, context=settings.context),
    )


def _bytes(text: str) -> tuple[Tensor, int]:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8), 256


def _characters(text: str) -> tuple[Tensor, int]:
    code_points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    characters, tokens = np.unique(code_points, return_inverse=True)
    return torch.from_numpy(tokens.astype(np.int32)), len(characters)


_TOKENIZERS: dict[str, Callable[[str], tuple[Tensor, int]]] = {"byte": _bytes, "character": _characters}


def _read(path: str | None) -> str:
    if path is None:
        from pydoc_data.topics import topics  # half a megabyte that only this default needs

        return "\n".join(topics[name] for name in sorted(topics))
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"data.path={path}: must be UTF-8, but byte {error.start} is not; convert the file, as with iconv"
        ) from error
    except OSError as error:
        raise ValueError(
            f"data.path={path}: {error.strerror}; name a UTF-8 text file, or null for the built-in text"
        ) from error
    if not text:
        raise ValueError(f"data.path={path}: the file is empty; name one that has text")
    return text


def _windows(tokens: Tensor, context: int) -> Tensor:
    """A view (windows, context + 1); neighbours share one token, so that each token is predicted once."""
    if len(tokens) <= context:
        return tokens.new_empty(0, context + 1)
    return tokens.unfold(0, context + 1, context)


def _tokens_of(windows: Tensor) -> Fetch:
    return lambda indices: windows.index_select(0, indices).long()  # kept small, but models look up int64
