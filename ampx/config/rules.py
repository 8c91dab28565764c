"""Settings that are right one by one and impossible together. Each rule returns its message, or None."""

from collections.abc import Callable, Sequence

from ampx.config.errors import as_typed
from ampx.config.experiment import ExperimentConfig, scaler_is_active
from ampx.config.fields import TargetSettings

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


def fast_kernels_need_cpu_float16(config: ExperimentConfig) -> str | None:
    """An automatic device is known to `numerics.kernels` alone, which checks it then."""
    if config.dtype.kernels != "fast":
        return None
    if config.device in ("cuda", "mps"):
        obstacle, way_out = f"device={config.device}", "device=cpu"
    elif not config.dtype.uses_float16:
        obstacle, way_out = f"dtype.compute_dtype={config.dtype.compute_dtype}", "dtype=fp16"
    else:
        return None
    typed = f"dtype.kernels=fast with {obstacle}"
    return f"{typed}: they replace a CPU's float16; use dtype.kernels=auto, or {way_out}"


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
    dtype = config.dtype
    if not dtype.uses_float16 or scaler_is_active(config) or config.scaler.allow_unscaled:
        return None
    is_island = dtype.compute_dtype != "float16"  # parameters are float16 only where computation is
    low = f"dtype.islands=[{','.join(dtype.islands)}]" if is_island else "dtype.compute_dtype=float16"
    setting, way_out = "scaler.enabled=false", "use scaler.enabled=auto"
    if config.scaler.kind == "none":
        setting, way_out = "scaler=none", "add scaler=dynamic"
    return f"{low} with {setting}: gradients below 6e-8 vanish; {way_out}, or scaler.allow_unscaled=true"


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
    optimizer, dtype = config.optimizer, config.dtype
    roundings = {"optimizer.rounding": optimizer.rounding}
    for name, overrides in optimizer.by_name.items():
        roundings[f"optimizer.by_name.{name}.rounding"] = overrides.get("rounding", optimizer.rounding)
    careful = [(setting, rounding) for setting, rounding in roundings.items() if rounding != "nearest"]
    if not careful or (dtype.param_dtype == "bfloat16" and dtype.masters == "none"):
        return None
    setting, rounding = careful[0]
    storage = f"dtype.param_dtype={dtype.param_dtype} and dtype.masters={dtype.masters}"
    return (
        f"{setting}={rounding} with {storage}: only bfloat16 parameters without masters "
        f"are rounded by an update; use dtype=bf16_pure, or {setting}=nearest"
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


def reduction_needs_ranks(config: ExperimentConfig) -> str | None:
    """One process averages no gradients, so a reduce dtype that was chosen on purpose would be ignored."""
    reduce_dtype = config.dtype.reduce_dtype
    if config.distribution.kind != "none" or reduce_dtype in (None, "float32"):
        return None
    return (
        f"dtype.reduce_dtype={reduce_dtype} with distribution=none: a single process reduces no gradients; "
        "use dtype.reduce_dtype=float32"
    )


RULES: tuple[Rule, ...] = (
    text_goes_with_text,
    reduction_needs_ranks,
    tf32_needs_cuda,
    fast_kernels_need_cpu_float16,
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
