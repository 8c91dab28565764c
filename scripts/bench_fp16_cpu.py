"""One float16 training step of resnet18 on this CPU: torch's own kernels against `dtype.kernels=fast`.

    python scripts/bench_fp16_cpu.py [--quick] [--pairs 7] [--threads 2] [--json FILE]

Both arms share one model, one optimizer and, when compiled, one graph. They take turns, and the speed-up is
the median of the paired ratios. Exits 1 if a goal is missed or a compiled step ran no compiled graph.
Leave the machine idle: threads that wait for a busy core swamp the fast arm (`--threads 1` is steadier).
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet18

from ampx.numerics.isa import probe_cpu
from ampx.numerics.kernels import Kernels

Step = Callable[[], bool]  # one training step; whether it ran a compiled graph
GOALS = {"eager": 12.0, "compiled": 8.0}


@dataclass(frozen=True)
class Row:
    """What one mode took: median milliseconds a step, and the paired speed-up over native kernels."""

    model: str
    mode: str
    native_ms: float
    fast_ms: float
    speedup: float
    lowest: float
    goal: float
    ran_compiled: bool

    @property
    def is_met(self) -> bool:
        """The goal reached, by the mode that the row names."""
        return self.speedup >= self.goal and self.ran_compiled == (self.mode == "compiled")


def main() -> int:
    """Measure, print the table, write `--json`."""
    args = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    model = resnet18(num_classes=10)
    references = {
        str(d): measure(build_step(model, d), args.pairs + 2) for d in (torch.float32, torch.bfloat16)
    }
    rows = [compare("eager", build_step(model, torch.float16), args.pairs)]
    compile_in_place(model)
    rows.append(compare("compiled", build_step(model, torch.float16), args.pairs))
    print_table(rows, references)
    if args.json:
        args.json.write_text(json.dumps(describe(rows, references, args), indent=2) + "\n")
    return 0 if all(row.is_met for row in rows) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, help="native/fast pairs per mode (default 7, quick 3)")
    parser.add_argument("--quick", action="store_true", help="fewer pairs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    args.pairs = args.pairs or (3 if args.quick else 7)
    return args


def build_step(model: nn.Module, dtype: torch.dtype) -> Step:
    """A whole training step under autocast, as in anybody's loop: 16 images of 3x64x64."""
    images, labels = torch.randn(16, 3, 64, 64), torch.randint(10, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)

    def step() -> bool:
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return logits.grad_fn.name() == "CompiledFunctionBackward"

    return step


def compile_in_place(model: nn.Module) -> None:
    """Compile with backward outside autocast, as ampx trains."""
    import torch._functorch.config

    torch._functorch.config.backward_pass_autocast = "off"
    model.compile()


def compare(mode: str, step: Step, pairs: int) -> Row:
    """Time `pairs` native and fast steps in turn, after one of each to warm up."""
    native, fast = Kernels("native"), Kernels("fast")
    times = [(time_ms(native, step), time_ms(fast, step)) for _ in range(pairs + 1)][1:]
    native_ms, fast_ms = (statistics.median(arm) for arm in zip(*times, strict=True))
    ratios = [native_ms / fast_ms for native_ms, fast_ms in times]
    with fast.installed():
        ran_compiled = step()
    return Row(
        "resnet18",
        mode,
        native_ms,
        fast_ms,
        statistics.median(ratios),
        min(ratios),
        GOALS[mode],
        ran_compiled,
    )


def measure(step: Step, repeats: int) -> float:
    """Median milliseconds of `step`, after one to warm up."""
    return statistics.median([time_ms(Kernels("native"), step) for _ in range(repeats + 1)][1:])


def time_ms(kernels: Kernels, step: Step) -> float:
    with kernels.installed():
        start = time.perf_counter()
        step()
        return (time.perf_counter() - start) * 1e3


def print_table(rows: list[Row], references: dict[str, float]) -> None:
    print(f"{probe_cpu()}\ntorch {torch.__version__}, {torch.get_num_threads()} threads")
    print("for comparison, eager: " + ", ".join(f"{name} {ms:.0f} ms" for name, ms in references.items()))
    print(f"{'resnet18':<10}{'native ms':>10}{'fast ms':>9}{'speed-up':>10}{'lowest':>8}{'goal':>6}  graph")
    for row in rows:
        print(
            f"{row.mode:<10}{row.native_ms:>10.0f}{row.fast_ms:>9.0f}{row.speedup:>9.1f}x{row.lowest:>7.1f}x"
            f"{row.goal:>5.0f}x  {'compiled' if row.ran_compiled else 'none'}"
        )


def describe(rows: list[Row], references: dict[str, float], args: argparse.Namespace) -> dict[str, object]:
    return {
        "cpu": asdict(probe_cpu()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "pairs": args.pairs,
        "reference_ms": references,
        "rows": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
