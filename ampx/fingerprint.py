"""Fingerprints of the code that makes a trial's numbers, so that a rerun can tell that it changed."""

import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any


def fingerprints(targets: Iterable[str]) -> dict[str, str]:
    """`{package: digest}` for ampx and the top-level package of every dotted target."""
    packages = {"ampx", *(target.partition(".")[0] for target in targets)}
    return {package: _fingerprint(package) for package in sorted(packages)}


def targets_in(settings: Any) -> Iterator[str]:
    """Every `_target_` in nested plain settings."""
    if isinstance(settings, Mapping):
        if isinstance(target := settings.get("_target_"), str):
            yield target
        for value in settings.values():
            yield from targets_in(value)
    elif isinstance(settings, (list, tuple)):
        for value in settings:
            yield from targets_in(value)


def _fingerprint(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return "unknown"
    origin = Path(spec.origin)
    if package != "ampx" and origin.is_relative_to(sysconfig.get_path("purelib")):
        return _installed_version(package)
    files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    digest = hashlib.sha256()
    for file in files:
        digest.update(str(file.relative_to(origin.parent)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _installed_version(package: str) -> str:
    names = metadata.packages_distributions().get(package, [package])
    try:
        return metadata.version(names[0])
    except metadata.PackageNotFoundError:
        return "unknown"
