"""Where a trial ran: versions, hardware, threads, git."""

import platform
import socket
import subprocess
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ampx.numerics.isa import probe_cpu


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device and the settings of torch that change numbers."""
    cpu = probe_cpu()
    return {
        "ampx": metadata.version("ampx") if _is_installed("ampx") else "source",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu.name,
        "cpu": asdict(cpu),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if device.type == "cuda" else None,
        "num_threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it; None outside a repository."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {
            "commit": commit,
            "is_dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()
