"""Settings that are right one by one and impossible together. Each rule returns its message, or None."""

from collections.abc import Callable, Sequence

from ampx.config.errors import as_typed
from ampx.config.experiment import ExperimentConfig
from ampx.config.fields import TargetSettings
from ampx.config.identity import scaler_is_active

Rule = Callable[[ExperimentConfig], str | None]

_SMALLEST_FLOAT16 = 2.0**-24
_TEXT_KINDS = {"model": ("gpt", "lstm"), "data": ("text",), "task": ("language_modeling",)}


def broken_rules(config: ExperimentConfig) -> list[str]:
    """What is impossible about the config, a line for each rule that it breaks."""
    rules = (*RULES, *TRAINING_RULES) if config.job.kind == "train" else RULES
    return [message for rule in rules if (message := rule(config))]


def sweep_problem(configs: Sequence[ExperimentConfig]) -> str | None:
    """What the trials of one sweep must have in common, and do not."""
    for setting in ("name", "out", "launcher"):
        values = list(dict.fromkeys(getattr(config, setting) for config in configs))
        if len(values) > 1:
            first, second = (as_typed(setting, getattr(value, "kind", value)) for value in values[:2])
            return f"{first} with {second}: a sweep has one {setting}; start a sweep for each"
    return None


def text_goes_with_text(config: ExperimentConfig) -> str | None:
    """Built-in models, data sets and tasks are of images or of text; a user's own may be of anything."""
    is_text: dict[str, bool] = {}
    for group, kinds in _TEXT_KINDS.items():
        kind = getattr(config, group).kind
        if kind != "custom":
            is_text[f"{group}={kind}"] = kind in kinds
    if len(set(is_text.values())) < 2:
        return None
    texts = " ".join(name for name, text in is_text.items() if text)
    others = " ".join(name for name, text in is_text.items() if not text)
    return (
        f"{texts} with {others}: the first is for text, the rest is not; "
        "choose model=gpt or lstm, data=text, task=language_modeling together, or none of them"
    )


def tf32_needs_cuda(config: ExperimentConfig) -> str | None:
    precision = config.dtype.matmul_precision
    if precision == "highest" or config.device not in ("cpu", "mps"):
        return None
    return (
        f"dtype.matmul_precision={precision} with device={config.device}: "
        "only CUDA devices multiply in TF32; use dtype=fp32, or device=cuda"
    )


def fast_kernels_need_cpu(config: ExperimentConfig) -> str | None:
    if config.dtype.kernels != "fast" or config.device not in ("cuda", "mps"):
        return None
    way_out = "use dtype.kernels=auto"
    return f"dtype.kernels=fast with device={config.device}: they replace a CPU's float16; {way_out}"


def evaluation_needs_checkpoint(config: ExperimentConfig) -> str | None:
    if config.job.kind != "evaluate" or config.checkpoint is not None:
        return None
    return "job=evaluate with checkpoint=null: there are no weights to evaluate; add checkpoint=<trial>"


def training_reads_no_checkpoint(config: ExperimentConfig) -> str | None:
    if config.checkpoint is None:
        return None
    return (
        f"checkpoint={config.checkpoint} with job=train: training starts from fresh weights; "
        "use resume=<trial> to go on from a trial's state, or job=evaluate"
    )


def float16_needs_scaler(config: ExperimentConfig) -> str | None:
    """Parameters are float16 only where computation is."""
    low = ["dtype.compute_dtype=float16"] if config.dtype.compute_dtype == "float16" else []
    low += [f"dtype.islands=[{island}]" for island in config.dtype.islands if island.endswith(":float16")]
    if not low or scaler_is_active(config) or config.scaler.allow_unscaled:
        return None
    setting, way_out = "scaler.enabled=false", "use scaler.enabled=auto"
    if config.scaler.kind == "none":
        setting, way_out = "scaler=none", "add scaler=dynamic"
    return f"{low[0]} with {setting}: gradients below 6e-8 vanish; {way_out}, or scaler.allow_unscaled=true"


def scaled_float16_needs_masters(config: ExperimentConfig) -> str | None:
    if not _steps_in_float16(config) or not scaler_is_active(config):
        return None
    return (
        "dtype.masters=none with dtype.param_dtype=float16: gradients unscaled in float16 vanish again; "
        "use dtype.masters=float32, or dtype=fp16"
    )


def eps_survives_float16(config: ExperimentConfig) -> str | None:
    eps: float | None = getattr(config.optimizer, "eps", None)
    if not _steps_in_float16(config) or eps is None or eps >= _SMALLEST_FLOAT16:
        return None
    return (
        f"optimizer.eps={eps:g} with dtype.param_dtype=float16 and dtype.masters=none: it is 0 in float16, "
        "and the step divides by it; use optimizer.eps=1e-4, or dtype.masters=float32"
    )


def rounding_needs_bfloat16(config: ExperimentConfig) -> str | None:
    rounding, dtype = config.optimizer.rounding, config.dtype
    if rounding == "nearest" or (dtype.param_dtype == "bfloat16" and dtype.masters == "none"):
        return None
    storage = f"dtype.param_dtype={dtype.param_dtype} and dtype.masters={dtype.masters}"
    return (
        f"optimizer.rounding={rounding} with {storage}: only bfloat16 parameters without masters "
        "are rounded by an update; use dtype=bf16_pure, or optimizer.rounding=nearest"
    )


def device_gate_needs_fused_step(config: ExperimentConfig) -> str | None:
    optimizer, schedule = config.optimizer, config.schedule
    if config.train.gate != "device":
        return None
    if isinstance(optimizer, TargetSettings):
        obstacle = "optimizer=custom"
    elif isinstance(schedule, TargetSettings):
        obstacle = "schedule=custom"
    elif optimizer.fused is False:
        obstacle = "optimizer.fused=false"
    else:
        return None
    return (
        f"train.gate=device with {obstacle}: only torch's fused optimizers and ampx's schedules "
        "follow a skip decided on the device; use train.gate=auto"
    )


def training_ends(config: ExperimentConfig) -> str | None:
    if config.train.has_horizon or config.train.max_time_s is not None:
        return None
    limits = "train.max_epochs=null with train.max_steps=null and train.max_time_s=null"
    return f"{limits}: training would not end; set one of them"


def schedule_knows_last_step(config: ExperimentConfig) -> str | None:
    schedule = config.schedule
    if isinstance(schedule, TargetSettings) or not schedule.needs_plan or config.train.has_horizon:
        return None
    return (
        f"schedule={schedule.kind} with train.max_steps=null and train.max_epochs=null: it is planned up to "
        "the last step, which is unknown; set train.max_steps, or use schedule=none"
    )


def early_stop_mode_needs_metric(config: ExperimentConfig) -> str | None:
    stop = config.train.early_stop
    if stop.metric is not None or stop.mode is None:
        return None
    return (
        f"train.early_stop.mode={stop.mode} with train.early_stop.metric=null: "
        "the task's own metric has its own mode; add train.early_stop.metric=<name>, or leave the mode out"
    )


def _steps_in_float16(config: ExperimentConfig) -> bool:
    return config.dtype.param_dtype == "float16" and config.dtype.masters == "none"


RULES: tuple[Rule, ...] = (
    text_goes_with_text,
    tf32_needs_cuda,
    fast_kernels_need_cpu,
    evaluation_needs_checkpoint,
)
TRAINING_RULES: tuple[Rule, ...] = (
    training_reads_no_checkpoint,
    float16_needs_scaler,
    scaled_float16_needs_masters,
    eps_survives_float16,
    rounding_needs_bfloat16,
    device_gate_needs_fused_step,
    training_ends,
    schedule_knows_last_step,
    early_stop_mode_needs_metric,
)
