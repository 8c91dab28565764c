"""Peak memory of this process."""

import resource
import sys

import torch


def peak_memory(device: torch.device) -> dict[str, int]:
    """Bytes: the process's peak resident size, and the allocator's peak on a GPU."""
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = {"peak_rss_bytes": resident if sys.platform == "darwin" else resident * 1024}
    if device.type == "cuda":
        memory["peak_device_bytes"] = torch.cuda.max_memory_allocated(device)
    return memory
