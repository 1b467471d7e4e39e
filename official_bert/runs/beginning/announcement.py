"""Describes a run before its first step: devices, precision, parameters, estimated memory, truncated rows."""

import glob
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf

from official_bert.config import Config
from official_bert.data.batches.feature_rows import ChoiceFeatures, TextFeatures
from official_bert.data.batches.sources import ExampleSource
from official_bert.layers.token_layout import LONG
from official_bert.reports.comparable import CONFIDENCE
from official_bert.runs.beginning.phases import phase_config
from official_bert.tasks.data import Resolved
from official_bert.text.vocab import casing_that_helps
from official_bert.training.phase import PhasePlan, evaluation_steps
from official_bert.training.trainer import Trainer

FLOAT32 = 4  # bytes
BACKWARD = 0.25  # of the activations; fits the measured peaks on a CPU (docs/results/training.md)
USUAL_LENGTH = 128  # tokens of a row, for tasks that do not say it
SAMPLE = 500  # rows in which [UNK] is counted
FEW_ROWS = 100  # to evaluate on
MOST_UNKNOWN = 0.05  # a larger share of the tokens is reported


def announce(trainer: Trainer, config: Config) -> list[str]:
    """Returns lines about the run's devices, the memory that its largest phase takes on each of them, and the machine's
    problems.
    """
    replicas = trainer.strategy.num_replicas_in_sync
    parameters = sum(weight.shape.num_elements() for weight in trainer.weights)
    fixed = trainer.model.count_params() - parameters
    sizes = []
    for phase_values in [phase_config(config, phase) for phase in config.phases] or [config]:
        rows = phase_values.training.batch_size // (replicas * phase_values.training.accumulation_steps)
        length = int(phase_values.options.get("max_seq_length", USUAL_LENGTH))
        sizes.append((memory_of(phase_values, parameters, rows, length, fixed), rows, length))
    memory, rows, length = max(sizes, key=lambda phase_values: sum(phase_values[0].values()))
    each = ", ".join(f"{name} {_size(count)}" for name, count in memory.items())
    return [
        f"runs on {devices(trainer.strategy)}; {replicas} replica{'s' * (replicas > 1)}, each {rows} rows of "
        f"{length} tokens at once; {precision(config)}; {parameters:,} trained parameters",
        f"about {_size(sum(memory.values()))} of memory a replica: {each}",
        *unreached_rate(config, trainer.total_steps),
        *missing_libraries(),
    ]


def unreached_rate(config: Config, steps: int) -> list[str]:
    """Returns a warning if a run ends within its warm-up, else []."""
    if config.optimizer.warmup_steps <= steps:
        return []
    return [
        f"the warm-up of {config.optimizer.warmup_steps:,} steps (optimizer.warmup_steps) is longer than the training "
        f"of {steps:,}: the learning rate does not reach {config.optimizer.learning_rate:g}"
    ]


def unmeasured(first: Resolved) -> list[str]:
    """Returns a warning if a run has no data for the evaluations that its configuration asks for, else []."""
    every = first.task.config.training.eval_every
    if not every or first.held_out is not None:
        return []
    return [f"no evaluation data: training.eval_every = {every} has no effect"]


def few_held_out(resolved: Resolved) -> list[str]:
    """Returns a warning if there are too few evaluation rows for reliable metrics and checkpoint selection, else []."""
    if resolved.held_out is None or not isinstance(source := resolved.held_out.source, ExampleSource):
        return []
    rows = source.made_of.number_of_texts if isinstance(source.made_of, TextFeatures) else len(source.examples)
    if not 0 < rows < FEW_ROWS:
        return []
    low, high = scipy.stats.binomtest(rows // 2, rows).proportion_ci(CONFIDENCE)
    return [
        f"warning: {rows} row{'s' * (rows > 1)} to evaluate on, fewer than {FEW_ROWS}: a share of right answers "
        f"is uncertain by up to {50 * (high - low):.0f} points ({CONFIDENCE:.0%} interval)"
    ]


def about_padding(trainer: Trainer, first: Resolved) -> list[str]:
    """Returns a line if layers skip padding, or if `training.skip_padding` is set but has no effect; else []."""
    if isinstance(source := first.train, ExampleSource) and len(source.buckets) != 1:
        return ["layers skip padding (training.skip_padding)"] * trainer.step.skips_padding
    asked = first.task.config.training.skip_padding is True
    return ["rows are all of one length: training.skip_padding = true has no effect"] * asked


def best_checkpoint(phases: Sequence[PhasePlan]) -> str:
    """Returns a line about the metric that selects the best checkpoint, and which one is used; "" if it is always the
    last.
    """
    first = phases[0]
    training, metric = first.recipe.training, first.best_metric
    if first.held_out is None:
        return (
            "none, because there is no evaluation data: the last checkpoint is used, unless best/ has one"
            if training.answer_with == "best"
            else ""
        )
    if training.answer_with == "last" and not training.patience:
        return ""
    count = 0 if training.hours else sum(len(evaluation_steps(phase)) for phase in phases)
    patience = f"; training stops after {training.patience} without a better value" if training.patience else ""
    return (
        f"by {metric.removeprefix('-')} ({'lower' if metric.startswith('-') else 'higher'} is better) of "
        f"{count or 'all'} evaluation{'s' * (count != 1)}{patience}; the {training.answer_with} checkpoint is used"
    )


def cut_rows(resolved: Resolved) -> dict[str, tuple[int, int]]:
    """Returns (truncated rows, all rows) by kind of data; {} for tasks that do not truncate.

    Rows of several choices or texts count each of these: `training choices`. Texts in windows count once.
    """
    if resolved.task.head == "span":  # each window is a row of its own
        return {}
    sources = {
        "training": resolved.train,
        "evaluation": resolved.held_out and resolved.held_out.source,
        "prediction": resolved.tests and resolved.tests.source,
    }
    parts, counts = "choices" if resolved.task.head == "choice" else "texts", {}
    for kind, source in sources.items():
        rows: Any = source.made_of if source else ()
        if isinstance(rows, ChoiceFeatures):
            kind, rows = f"{kind} {parts}", rows.rows
        if isinstance(rows, TextFeatures):
            counts[kind] = (rows.longer, rows.number_of_texts)
    return counts


def cut_lines(resolved: Resolved, config: Config) -> list[str]:
    """Returns lines with the number of rows that were truncated, or split into windows; [] if there are none."""
    lines = [
        f"{cut:,} of {rows:,} {kind if ' ' in kind else f'{kind} rows'}"
        for kind, (cut, rows) in cut_rows(resolved).items()
        if cut
    ]
    if config.options.get("truncate") == "windows":
        return [f"read in several windows of {config.options.get('max_seq_length')} tokens: {', '.join(lines)}"] * bool(
            lines
        )
    cuts = hasattr(resolved.task.options, "truncate") and resolved.task.head != "choice"
    part = ", options.truncate another part of the text" * cuts
    return [
        f"cut to {config.options.get('max_seq_length')} tokens: {', '.join(lines)}; the model does not see the rest: a "
        f"higher max_seq_length shows it more{part}"
    ] * bool(lines)


def unknown_lines(resolved: Resolved) -> list[str]:
    """Returns a warning if many training tokens are [UNK], because the texts have another language or casing than the
    vocabulary; else [].
    """
    rows = resolved.train.made_of if resolved.train else ()
    chosen = [rows[number] for number in np.linspace(0, len(rows) - 1, min(SAMPLE, len(rows))).astype(int)]
    ids = [np.ravel(row["input_ids"])[np.ravel(row["input_mask"]) > 0] for row in chosen if "input_ids" in row]
    unknown = np.mean(np.concatenate(ids) == resolved.task.tokenizer.special_id("[UNK]")) if ids else 0.0
    if unknown <= MOST_UNKNOWN:
        return []
    tokenizer = resolved.task.tokenizer
    hint = casing_that_helps(tokenizer.vocab, tokenizer.do_lower_case)
    return [
        f"warning: {unknown:.0%} of the tokens of the training rows are [UNK], words that "
        f"{resolved.task.config.tokenizer.vocab_file} "
        f"cannot spell: {hint or 'is it a vocabulary of this language, and of its casing?'}"
    ]


def devices(strategy: tf.distribute.Strategy) -> str:
    """Returns the devices of this worker with their counts: `2 x NVIDIA H200`, `1 x CPU`."""
    if strategy is tf.distribute.get_strategy() and not tf.distribute.has_strategy():  # TensorFlow takes the first GPU
        names = [_gpu_name(gpu) for gpu in tf.config.list_physical_devices("GPU")[:1]] or ["CPU"]
    else:
        names = [_device_name(name) for name in strategy.extended.worker_devices]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _device_name(name: str) -> str:
    """A person's name for a logical device."""
    device = tf.DeviceSpec.from_string(name)
    gpus = tf.config.list_physical_devices("GPU")
    return _gpu_name(gpus[device.device_index]) if device.device_type == "GPU" and gpus else device.device_type or "CPU"


def _gpu_name(gpu: tf.config.PhysicalDevice) -> str:
    return tf.config.experimental.get_device_details(gpu).get("device_name", "GPU")


def precision(config: Config) -> str:
    """Returns the compute precision; for float32 on a GPU, also whether matrix products use TF32."""
    name = config.training.precision
    if name != "float32" or not tf.config.list_physical_devices("GPU"):
        return name
    return (
        f"float32, TF32 {'on' if tf.config.experimental.tensor_float_32_execution_enabled() else 'off'} (training.tf32)"
    )


def memory_of(config: Config, parameters: int, rows: int, length: int, fixed: int = 0) -> Mapping[str, int]:
    """Estimates the bytes of a step on one device, by kind; the optimizer keeps two moments for each parameter that is
    not `fixed`.

    The backward pass holds gradients of some activations, and the gradient of the word table twice, once from each of
    its uses.
    """
    activations, table = (
        activation_bytes(config, rows, length),
        config.model.vocab_size * config.model.table_width * FLOAT32,
    )
    return {
        "weights": (parameters + fixed) * FLOAT32,
        "moments": 2 * parameters * FLOAT32,
        "gradients": parameters * FLOAT32,
        "activations": activations,
        "backward pass": int(BACKWARD * activations) + table,
    }


def activation_bytes(config: Config, rows: int, length: int) -> int:
    """Estimates the bytes of activations that the forward pass keeps for the backward pass.

    For each token and layer these are: queries, keys, values, the inputs and outputs of attention and feed-forward
    network before and after dropout and LayerNorm (11 times the hidden size), the inner values before and after the
    activation, and for each head a row of attention weights before and after dropout. With `recompute=True` a layer
    keeps only its input, and one layer at a time exists as a whole; with "attention" it keeps everything but the
    attention weights. With a window, a row of weights spans three windows; weights of long rows that are computed in
    blocks are not kept.
    """
    model, training = config.model, config.training
    width = FLOAT32 if training.precision == "float32" else 2
    tokens = rows * length
    in_blocks = length > LONG and not (model.relative_buckets or model.position_buckets)
    windows = [model.windows.of_layer(index) for index in range(model.num_hidden_layers)]
    keys = [min(3 * window, length) if window else 0 if in_blocks else length for window in windows]
    weights = [tokens * 2 * model.num_attention_heads * count * width for count in keys]
    inner = (3 if model.feed_forward == "gated" else 2) * model.intermediate_size
    layer = tokens * (11 * model.hidden_size + inner) * width
    # of a layer, in the backward pass
    again = {False: 0, True: layer + max(weights), "attention": max(weights)}[training.recompute]
    of_layers = sum(
        tokens * model.hidden_size * width
        if training.recompute is True
        else layer + (0 if training.recompute else count)
        for count in weights
    )
    predictions = (
        length
        if config.options.get("objective") == "next_token"
        else int(config.options.get("max_predictions_per_seq", 0))
    )
    heads = rows * predictions * model.vocab_size * 2 * FLOAT32
    return int(of_layers + again + heads)


def missing_libraries() -> list[str]:
    """Returns a warning if the machine has an NVIDIA GPU that TensorFlow does not see, because TensorFlow's own warning
    is easily missed; else [].
    """
    if not nvidia_devices() or tf.config.list_physical_devices("GPU"):
        return []
    if not tf.test.is_built_with_cuda():
        return ["warning: this machine has an NVIDIA GPU, but this TensorFlow is built without CUDA: the CPU computes"]
    build = tf.sysconfig.get_build_info()
    return [
        "warning: this machine has an NVIDIA GPU, but TensorFlow does not see it, so the CPU computes: a library of "
        f"CUDA {build.get('cuda_version', '')} or cuDNN {build.get('cudnn_version', '')} is missing, or "
        "CUDA_VISIBLE_DEVICES hides the GPU; TF_CPP_MIN_LOG_LEVEL=0 names the library, pip install "
        "'tensorflow[and-cuda]' brings them"
    ]


def nvidia_devices() -> list[str]:
    """Returns the NVIDIA GPUs that the driver lists."""
    return glob.glob("/dev/nvidia[0-9]*")


def _size(count: int) -> str:
    return next(
        f"{count / unit:,.1f} {name}"
        for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"))
        if count >= unit or name == "KB"
    )
