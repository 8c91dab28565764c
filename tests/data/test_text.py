"""Tests of ampx.data.text."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ampx.config.data import TextSettings
from ampx.data.text import text


def settings(**changes: Any) -> TextSettings:
    defaults: dict[str, Any] = {
        "path": None,
        "tokenizer": "byte",
        "context": 8,
        "val_fraction": 0.25,
        "batch_size": 4,
        "shuffle": False,
        "drop_last": False,
    }
    return TextSettings(kind="text", **{**defaults, **changes})


@pytest.fixture
def alphabet(tmp_path: Path) -> Path:
    file = tmp_path / "alphabet.txt"
    file.write_text("äabcdefghijklmnopqrstuvwxyz" * 8, encoding="utf-8")
    return file


def test_windows_overlap_by_one_token_so_that_each_is_predicted_once(alphabet: Path) -> None:
    splits = text(settings(path=str(alphabet)), seed=0)
    windows = torch.cat(list(splits.train.iterate(0, 0)))
    assert (windows.dtype, windows.shape[1]) == (torch.int64, 9)
    assert torch.equal(windows[:-1, -1], windows[1:, 0])
    stream = torch.cat([windows[0, :1], windows[:, 1:].flatten()])
    assert bytes(stream.tolist()) == alphabet.read_bytes()[: len(stream)]


def test_the_end_of_the_text_validates(alphabet: Path) -> None:
    splits = text(settings(path=str(alphabet)), seed=0)
    first = next(splits.val.iterate(0, 0))[0]
    tokens = alphabet.read_bytes()
    assert bytes(first.tolist()) == tokens[len(tokens) * 3 // 4 :][:9]


def test_characters_are_numbered_by_code_point(alphabet: Path) -> None:
    splits = text(settings(path=str(alphabet), tokenizer="character"), seed=0)
    assert splits.spec.sizes() == {"vocab_size": 27, "context": 8}
    assert next(splits.train.iterate(0, 0))[0].tolist() == [26, 0, 1, 2, 3, 4, 5, 6, 7]


def test_bytes_have_a_vocabulary_of_256() -> None:
    splits = text(settings(), seed=0)
    assert splits.spec.sizes() == {"vocab_size": 256, "context": 8}
    assert len(splits.train) * 4 * 8 > 300_000


def test_a_missing_file_a_folder_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.path=.*/nowhere: No such file .*; name a UTF-8 text file"):
        text(settings(path=str(tmp_path / "nowhere")), seed=0)
    with pytest.raises(ValueError, match=r"data\.path=.*: Is a directory; name a UTF-8 text file"):
        text(settings(path=str(tmp_path)), seed=0)
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match=r"data\.path=.*/empty: the file is empty; name one"):
        text(settings(path=str(tmp_path / "empty")), seed=0)


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(ValueError, match=r"data\.path=.*latin1: must be UTF-8, but byte 3 is not; convert"):
        text(settings(path=str(tmp_path / "latin1")), seed=0)


def test_a_context_that_does_not_fit_is_refused(alphabet: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.context=100: .* 168 to train and 56 to validate; lower"):
        text(settings(path=str(alphabet), context=100), seed=0)
