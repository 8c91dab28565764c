"""Step time of ampx's loop, full ledger on, against a hand-written torch.amp loop doing the same work.

    python scripts/bench_overhead.py [--quick] [--blocks 200] [--models mlp gpt] [--arms ampx] [--json FILE]

Every arm trains the same model on the same batches with the same optimizer class (fused), schedule, clipping
and scaler. Arms take turns block by block; a row is the median over blocks of arm / hand, with the upper end
of its bootstrap 95 % interval. Further arms: accelerate, fabric, lightning (`pip install ampx[peers]`).
float16 runs on native kernels in every arm.
"""

import argparse
import gc
import json
import logging
import math
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn
from torch.nn import functional as F

from ampx.config.experiment import ExperimentConfig
from ampx.config.load import dump_config, resolve, validate
from ampx.data.build import build_data
from ampx.models.build import build_model
from ampx.track.local import LocalTracker
from ampx.training.assemble import assemble
from ampx.training.checkpoint import Checkpoints
from ampx.training.loop import Loop
from ampx.trial import Trial

CONF = Path(__file__).resolve().parent.parent / "conf"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MODELS = {
    "mlp": ["model=mlp", "model.hidden=[128,128,128]", "data.batch_size=32"],
    "resnet": [],
    "gpt": [
        "model=gpt", "model.width=64", "model.depth=2", "data=text", "task=language_modeling",
        "data.context=64", "data.batch_size=8",
    ],
}  # fmt: skip
STEPS_PER_BLOCK = {"mlp": 40, "resnet": 4, "gpt": 4}
QUICK_BLOCKS = 15
CLIP_NORM = 1.0
NUM_STEPS = 1_000_000  # the horizon of the schedule: no arm comes near its end

Step = Callable[[], None]
Block = Callable[[int], float]  # runs so many steps; seconds


def experiment(model: str, dtype: str) -> ExperimentConfig:
    """The config of one comparison: nothing is evaluated or saved while it is timed."""
    overrides = [
        *MODELS[model], f"dtype={dtype}", "dtype.kernels=native", "optimizer=adamw",
        "optimizer.no_decay=false", "schedule=cosine",
        f"train.max_steps={NUM_STEPS}", "train.max_epochs=null", f"train.eval_every={NUM_STEPS}",
        f"train.checkpoint_every={NUM_STEPS}", f"train.clip_norm={CLIP_NORM}", "device=cpu",
    ]  # fmt: skip
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return validate(resolve(compose("config", overrides=overrides)))


@dataclass
class Hand:
    """What every arm but ampx starts from: its own copy of the model, and the same batches."""

    config: ExperimentConfig
    dtype: torch.dtype

    def __post_init__(self) -> None:
        torch.manual_seed(self.config.seed)
        self.splits = build_data(self.config.data, seed=self.config.seed)
        self.model = build_model(self.config.model, self.splits.spec)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.config.optimizer.lr, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, cosine)

    def batches(self) -> Iterator[Any]:
        """Batches without end, epoch after epoch."""
        epoch = 0
        while True:
            yield from self.splits.train.iterate(epoch, 0)
            epoch += 1

    def loss(self, batch: Any, model: nn.Module | None = None) -> Tensor:
        """The task's loss, written by hand."""
        model = model or self.model
        if isinstance(batch, Tensor):
            logits = model(batch[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        x, y = batch
        return F.cross_entropy(model(x), y)


def cosine(step: int) -> float:
    """The factor of the learning rate after `step` steps."""
    return 0.5 * (1 + math.cos(math.pi * min(step / NUM_STEPS, 1)))


def clip(model: nn.Module) -> None:
    """What every arm but ampx and Accelerate clips with."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)


def hand_arm(config: ExperimentConfig, dtype: torch.dtype) -> Step:
    """torch.amp as its own examples write it."""
    hand = Hand(config, dtype)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    batches = hand.batches()

    def step() -> None:
        batch = next(batches)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = hand.loss(batch)
        scaler.scale(loss).backward()
        scaler.unscale_(hand.optimizer)
        clip(hand.model)
        scaler.step(hand.optimizer)
        scaler.update()
        hand.schedule.step()
        hand.optimizer.zero_grad(set_to_none=True)

    return step


def ampx_arm(config: ExperimentConfig, dtype: torch.dtype) -> Step:
    """The loop of `ampx run`, writing its ledger to disk."""
    del dtype
    folder = Path(tempfile.mkdtemp(prefix="ampx-bench-"))
    trial = Trial.create(folder / "trial", config_text=dump_config(config), overrides=[])
    state = assemble(
        config, torch.device("cpu"), observers=[LocalTracker(trial)], on_overflow=lambda *_: None
    )
    loop = Loop(
        state, config.train, Checkpoints(trial.checkpoints), Quiet(),
        abort_after_skips=config.scaler.abort_after_skips, min_scale=1.0,
    )  # fmt: skip

    def step() -> None:
        assert loop.ending() is None
        loop.step()

    return step


class Quiet:
    """A watcher that hears of nothing."""

    def is_stop_requested(self) -> bool:
        return False

    def tell(self, kind: str, **details: object) -> None:
        del kind, details

    def on_evaluation(self, step: int, metrics: Any) -> None:
        del step, metrics

    def on_first_step(self) -> None: ...

    def before_checkpoint(self) -> None: ...


def accelerate_arm(config: ExperimentConfig, dtype: torch.dtype) -> Step:
    """Hugging Face Accelerate; it has no float16 on a CPU."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # one precision a process, else
    hand = Hand(config, dtype)
    precision = {torch.float32: "no", torch.bfloat16: "bf16"}[dtype]
    accelerator = Accelerator(mixed_precision=precision, cpu=True)
    model, optimizer, schedule = accelerator.prepare(hand.model, hand.optimizer, hand.schedule)
    batches = hand.batches()

    def step() -> None:
        batch = next(batches)
        with accelerator.accumulate(model), accelerator.autocast():
            loss = hand.loss(batch, model)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def fabric_arm(config: ExperimentConfig, dtype: torch.dtype) -> Step:
    """Lightning Fabric; it has no float16 scaling on a CPU."""
    from lightning.fabric import Fabric

    quiet_lightning()
    hand = Hand(config, dtype)
    precision = {torch.float32: "32-true", torch.bfloat16: "bf16-mixed"}[dtype]
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    model, optimizer = fabric.setup(hand.model, hand.optimizer)
    batches = hand.batches()

    def step() -> None:
        batch = next(batches)
        with fabric.autocast():
            loss = hand.loss(batch, model)
        fabric.backward(loss)
        clip(model)
        optimizer.step()
        hand.schedule.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def quiet_lightning() -> None:
    """It greets at every fit."""
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("lightning")]:
        logging.getLogger(name).setLevel(logging.ERROR)


def lightning_arm(config: ExperimentConfig, dtype: torch.dtype) -> Block:
    """Lightning's Trainer: one short `fit` a block, timed by a callback from its third batch on."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    quiet_lightning()
    hand = Hand(config, dtype)
    batches = hand.batches()

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = hand.model

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            del batch_idx
            return hand.loss(batch, self.net)

        def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
            clip(self.net)  # Lightning's own refuses a fused optimizer under bf16-mixed

        def configure_optimizers(self) -> Any:
            return [hand.optimizer], [{"scheduler": hand.schedule, "interval": "step"}]

    class Clock(Callback):
        def on_train_batch_start(self, _trainer: Any, _module: Any, _batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                self.started = time.perf_counter()

        def on_train_end(self, _trainer: Any, _module: Any) -> None:
            self.elapsed = time.perf_counter() - self.started

    precision = {torch.float32: "32-true", torch.bfloat16: "bf16-mixed"}[dtype]

    def block(num_steps: int) -> float:
        clock = Clock()
        trainer = Trainer(
            accelerator="cpu", devices=1, precision=precision, max_steps=num_steps + 2,
            logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[clock],
        )  # fmt: skip
        own = [next(batches) for _ in range(num_steps + 2)]
        trainer.fit(Module(), torch.utils.data.DataLoader(own, batch_size=None))
        return clock.elapsed

    return block


def stepwise(step: Step) -> Block:
    """A block out of single steps."""

    def block(num_steps: int) -> float:
        started = time.perf_counter()
        for _ in range(num_steps):
            step()
        return time.perf_counter() - started

    return block


ARMS: dict[str, Callable[[ExperimentConfig, torch.dtype], Block]] = {
    "hand": lambda config, dtype: stepwise(hand_arm(config, dtype)),
    "ampx": lambda config, dtype: stepwise(ampx_arm(config, dtype)),
    "accelerate": lambda config, dtype: stepwise(accelerate_arm(config, dtype)),
    "fabric": lambda config, dtype: stepwise(fabric_arm(config, dtype)),
    "lightning": lightning_arm,
}
HAVE_FLOAT16_ON_CPU = ("hand", "ampx")


def compare(model: str, dtype: str, arms: list[str], num_blocks: int) -> list[dict[str, Any]]:
    """Rows of arm / hand for one model and dtype."""
    config = experiment(model, dtype)
    names = ["hand", *(arm for arm in arms if dtype != "fp16" or arm in HAVE_FLOAT16_ON_CPU)]
    blocks = {name: ARMS[name](config, DTYPES[dtype]) for name in names}
    num_steps = max(1, STEPS_PER_BLOCK[model] // (4 if dtype == "fp16" else 1))
    for block in blocks.values():
        block(max(3, num_steps // 2))  # caches, and the first touch of memory
    times: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    for _ in range(num_blocks):
        for name in random.sample(names, len(names)):
            times[name].append(blocks[name](num_steps))
        gc.collect(0)
    gc.enable()
    return [
        row(model, name, dtype, times[name], times["hand"], 1e6 / num_steps)
        for name in names
        if name != "hand"
    ]


def row(
    model: str, arm: str, dtype: str, own: list[float], hand: list[float], to_us: float
) -> dict[str, Any]:
    """Median ratio over pairs, and the upper end of its bootstrap 95 % interval."""
    ratios = [mine / theirs for mine, theirs in zip(own, hand, strict=True)]
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
    return {
        "model": model, "arm": arm, "dtype": dtype, "ratio": round(statistics.median(ratios), 4),
        "upper95": round(medians[int(0.975 * len(medians))], 4), "blocks": len(ratios),
        "us": round(statistics.median(own) * to_us, 1), "hand_us": round(statistics.median(hand) * to_us, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument(
        "--arms", nargs="+", choices=[arm for arm in ARMS if arm != "hand"], default=list(ARMS)[1:]
    )
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="15 blocks: minutes, with wider intervals")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(0)
    warnings.filterwarnings("ignore")
    rows: list[dict[str, Any]] = []
    print(f"{'model':8} {'dtype':6} {'arm':12} {'us/step':>10} {'hand':>10} {'ratio':>8} {'upper95':>8}")
    for model in arguments.models:
        for dtype in arguments.dtypes:
            for each in compare(
                model, dtype, arguments.arms, QUICK_BLOCKS if arguments.quick else arguments.blocks
            ):
                rows.append(each)
                print(
                    f"{model:8} {dtype:6} {each['arm']:12} {each['us']:10.1f} {each['hand_us']:10.1f} "
                    f"{each['ratio']:8.4f} {each['upper95']:8.4f}",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
