"""The nearest known name to one that was mistyped."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like `word`, if any is like it."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else None


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The known dotted key most like `key`; one that differs only in its section comes first."""
    names = list(known)
    same_leaf = [name for name in names if _leaf(name) == _leaf(key)]
    if same_leaf:
        return nearest(key, same_leaf) or same_leaf[0]
    return nearest(key, names)


def did_you_mean(name: str | None) -> str:
    """The end of a message that offers `name`, or nothing."""
    return f"; did you mean {name}?" if name else ""


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]
