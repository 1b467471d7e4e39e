"""The configuration of a training: its length and batches, the optimizer, what a student learns from a teacher."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from official_bert.fields import (
    Constraint,
    Count,
    Natural,
    NonNegative,
    Positive,
    PositiveShare,
    Rate,
    Share,
    check_fields,
    check_used,
    only_with,
)
from official_bert.typed_values import Removed

# The learning-rate schedules, each with the fields of `OptimizerConfig` that not all of them read; their classes are in
# `training/learning_rate`.
SCHEDULES: Mapping[str, Sequence[str]] = types.MappingProxyType(
    {
        "linear": ("end_learning_rate",),
        "polynomial": ("end_learning_rate", "power"),
        "constant": (),
        "warmup_stable_decay": ("end_learning_rate", "decay_steps", "decay_proportion", "decay_shape"),
    }
)
if TYPE_CHECKING:
    Schedule = str
else:
    Schedule = Literal[tuple(SCHEDULES)]
Moment = Annotated[float, Constraint("a factor from 0 (adamw alone) to below 1", lambda value: 0 <= value < 1)]
DISTILLATION = "config.training.distillation."


def read_by_schedules(default: Any, name: str) -> Any:
    """Returns a field of this default and name, which some schedules read."""
    return only_with(default, "schedule", *(schedule for schedule, fields in SCHEDULES.items() if name in fields))


def changeable(default: Any) -> Any:
    """Returns a field with this default that may change when a run is resumed; changing any other field makes it
    another run.
    """
    return dataclasses.field(default=default, metadata={"changeable": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer and its learning-rate schedule; the defaults are those of 2018's pre-training."""

    name: Literal["adamw", "adamw_bias_corrected", "lamb", "stable_adamw"] = "adamw"
    """Update rule; adamw is that of 2018, without bias correction."""
    learning_rate: NonNegative = 1e-4
    """Highest learning rate, reached at the end of the warm-up."""
    schedule: Schedule = "linear"
    """Form of the learning rate after the warm-up; warmup_stable_decay keeps the highest rate until the decay."""
    power: NonNegative = read_by_schedules(1.0, "power")
    """Exponent of the polynomial schedule."""
    decay_steps: Natural = read_by_schedules(0, "decay_steps")
    """Last steps of the run, in which the learning rate falls."""
    decay_proportion: Share = read_by_schedules(0.0, "decay_proportion")
    """The same as a share of all steps, used if decay_steps is 0."""
    decay_shape: Literal["linear", "one_minus_sqrt"] = read_by_schedules("linear", "decay_shape")
    """Factor at the share x of the decay: 1 - x, or 1 - sqrt(x)."""
    end_learning_rate: NonNegative = read_by_schedules(0.0, "end_learning_rate")
    """Learning rate at the end of the run."""
    warmup_steps: Natural = 0
    """First steps of the run, in which the learning rate rises from 0."""
    warmup_proportion: Share = 0.0
    """The same as a share of all steps, used if warmup_steps is 0."""
    weight_decay_rate: NonNegative = 0.01
    """Weight decay, of all weights but those of layer norms and biases."""
    beta_1: Moment = 0.9
    """Decay of the mean of the gradients."""
    beta_2: Moment = 0.999
    """Decay of the mean of the squared gradients."""
    epsilon: NonNegative = 1e-6
    """Added to the root of the mean squared gradient."""
    clip_norm: NonNegative = 1.0
    """Largest norm of the global gradient; 0 switches clipping off."""
    layer_decay: PositiveShare = 1.0
    """Factor between the learning rates of neighbouring layers; embeddings are below the first layer."""
    head_rate: Positive = 1.0
    """Factor of the learning rate of the task's head."""

    def __post_init__(self) -> None:
        check_fields(self, "config.optimizer.")
        for key in ("beta_1", "beta_2"):
            if getattr(self, key) == 0 and self.name != "adamw":
                raise ValueError(
                    f"config.optimizer.{key}: expected a factor from 0 (adamw alone) to below 1, got 0 for {self.name}"
                )
        if self.schedule == "warmup_stable_decay" and not (self.decay_steps or self.decay_proportion):
            raise ValueError(
                "config.optimizer.decay_steps: expected decay_steps or decay_proportion above 0 for the schedule "
                "warmup_stable_decay, got neither; without a decay use the schedule constant"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """The parts of the loss of a student, and what is done with the answers of `training.teacher`
    (docs/distillation.md).
    """

    temperature: Positive = 2.0
    """Divides the logits of both; the divergence is multiplied by its square (Hinton et al. 2015)."""
    labels: NonNegative = 0.5
    """Factor of the loss of the labels, or of masked words."""
    answers: NonNegative = 0.5
    """Factor of the divergence of the student's answers from the teacher's."""
    states: NonNegative = 0.0
    """Factor of 1 - the cosine of both models' last states (DistilBERT): pre-training, models of one width."""
    relations: NonNegative = 0.0
    """Factor of the divergence of the relations in the last layer (MiniLM v2): pre-training, models of any size."""
    relation_heads: Natural = only_with(0, "relations")
    """Heads into which queries, keys and values are divided for the relations; 0: the student's heads."""
    keep: Literal["auto", "kept", "computed"] = "auto"
    """Whether the teacher's answers of a task are computed once and cached (kept), or at each step; auto: kept if there
    is room. Answers for masked words are always computed."""
    kept_gigabytes: NonNegative = 4.0
    """Most gigabytes of cached answers."""
    student_layers: str | tuple[int, ...] = ""
    """Layers of the teacher, from 0, as in 0,2,4, that initialize the student; empty: none."""

    def __post_init__(self) -> None:
        check_fields(self, DISTILLATION)
        if not self.of_teacher:
            raise ValueError(
                f"{DISTILLATION}answers: expected answers, states or relations above 0, got 0: nothing would be "
                "learned from the teacher"
            )
        self.layers  # noqa: B018 (refuses another list at once)

    @property
    def of_teacher(self) -> tuple[str, ...]:
        """The parts of the loss that compare the student with its teacher."""
        return tuple(key for key in ("answers", "states", "relations") if getattr(self, key))

    @property
    def observes(self) -> bool:
        """Whether models are compared by their last layers."""
        return bool(self.states or self.relations)

    @property
    def layers(self) -> tuple[int, ...]:
        """The teacher's layers that the student begins with. Raises ValueError for anything but numbers from 0."""
        parts = (
            self.student_layers.split(",")
            if isinstance(self.student_layers, str)
            else [str(part) for part in self.student_layers]
        )
        if parts == [""]:
            return ()
        if not all(part.strip().isdecimal() for part in parts):
            raise ValueError(
                f"{DISTILLATION}student_layers: expected numbers of layers, from 0, as in 0,2,4, got "
                f"{self.student_layers!r}"
            )
        return tuple(int(part) for part in parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptersConfig:
    """Low-rank adapters, under PEFT's names: they and the head are trained, the base is fixed (docs/adapters.md)."""

    rank: Natural = 8
    """Width between the two matrices of an adapter; 0: no adapters, the head alone is trained."""
    alpha: Positive = only_with(16.0, "rank")
    """The output of an adapter is multiplied by alpha / rank."""
    dropout: Rate = only_with(0.0, "rank")
    """Dropout of the rows that adapters read."""
    target_modules: str | tuple[str, ...] = only_with(("query", "value"), "rank")
    """Products that get an adapter, by the ends of their names here or in Hugging Face's files; all-linear: all but the
    output layer. Another text is a regular expression for whole names."""
    use_rslora: bool = only_with(False, "rank")
    """Multiply by alpha / the square root of rank instead."""
    bias: Literal["none", "lora_only", "all"] = "none"
    """Biases of the base that are trained too: none, those of the products with adapters, all."""

    def __post_init__(self) -> None:
        check_fields(self, "config.training.adapters.")

    @property
    def scale(self) -> float:
        """What an adapter's product is multiplied by."""
        return self.alpha / (self.rank**0.5 if self.use_rslora else self.rank)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, in which batches and in which precision a run trains, and what it keeps."""

    batch_size: Count = 32
    """Sequences of a step, over all replicas and accumulation steps."""
    eval_batch_size: Count = changeable(32)
    """Sequences of a batch of an evaluation."""
    steps: Natural = changeable(0)
    """Optimizer steps; 0: epochs or hours say how long the run is."""
    hours: NonNegative = 0.0
    """Hours of training instead of steps and epochs; the learning rate reaches 0 at their end. 0: no time limit."""
    epochs: NonNegative = changeable(0.0)
    """Passes over the training data (fine-tuning)."""
    epoch_rounding: Literal["up", "down"] = changeable("up")
    """Steps of an epoch: up, so that each row is seen (the last batch may be short), or down, as in 2018, to epochs
    times rows / batch_size."""
    accumulation_steps: Count = changeable(1)
    """Micro-batches of a step."""
    steps_per_loop: Count = changeable(100)
    """Most steps before the host regains control."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the numbers in layers."""
    xla: bool = changeable(False)
    """Compile forward and backward pass of a micro-batch with XLA."""
    tf32: bool = True
    """Round the factors of float32 products to 10 bits on a GPU, as TensorFlow does by default."""
    freeze: str | tuple[str, ...] = ""
    """Parts that are not trained, such as `embeddings, layers 0-5`; also pooler and encoder."""
    reinitialize_layers: Natural = 0
    """Last layers whose weights, and the pooler's, are new instead of the checkpoint's."""
    recompute: bool | Literal["attention"] = changeable(False)
    """Activation checkpointing: the backward pass computes whole layers again (true; a third more work), or the weights
    of attention alone, which are sequence length x sequence length for each head."""
    skip_padding: bool | Literal["auto"] = changeable("auto")
    """Layers skip padding if lengths differ; auto: on CPUs."""
    save_every: Count = changeable(1000)
    """Steps between checkpoints."""
    keep_checkpoints: Count = changeable(3)
    """Number of last checkpoints to keep; the best one is kept too."""
    keep_every: Natural = changeable(0)
    """Checkpoints at multiples of these steps are never deleted; 0: none."""
    eval_every: Natural = changeable(0)
    """Steps between evaluations; 0: eval_epochs decides."""
    eval_epochs: NonNegative = changeable(0.0)
    """Epochs between evaluations, if eval_every is 0; 0: one at the end."""
    eval_steps: Natural = changeable(0)
    """Batches of an evaluation; 0: all."""
    patience: Natural = changeable(0)
    """Evaluations in a row without a better value after which the training ends; 0: never."""
    answer_with: Literal["last", "best"] = changeable("last")
    """Checkpoint used for prediction and export."""
    report: bool = changeable(False)
    """Write report.html and report.json about the last evaluation."""
    explain_mistakes: Natural = changeable(0)
    """So many of the worst mistakes in the report get a table with coloured words (docs/explain.md)."""
    log_every: Count = changeable(50)
    """Steps between lines of the log; the screen shows at most one a minute."""
    skip_gradient_norm: NonNegative = 0.0
    """Steps with a larger norm of the global gradient are skipped and counted; 0: none."""
    max_skipped_in_a_row: Natural = changeable(100)
    """Steps skipped in a row that stop the run; 0: never."""
    teacher: str = ""
    """A trained model, of any format, whose answers the model learns beside the labels (docs/distillation.md)."""
    distillation: DistillationConfig = dataclasses.field(default_factory=DistillationConfig)
    """What is learned from the teacher."""
    adapters: AdaptersConfig | None = None
    """Train low-rank adapters and the head alone; none: the whole model."""
    REMOVED = types.MappingProxyType(
        {
            "replay": Removed("", "training.steps repeats a training exactly"),
            "rewind_on_spike": Removed(
                0.0, "training.skip_gradient_norm, or an older checkpoint with another seed, replaces it"
            ),
        }
    )

    def __post_init__(self) -> None:
        check_fields(self, "config.training.")
        check_used(self, ["explain_mistakes"], "training.report", self.report, "config.training.")
        for key, value in (
            ("freeze", self.freeze),
            ("reinitialize_layers", self.reinitialize_layers),
            ("distillation.student_layers", self.distillation.student_layers),
        ):
            if self.adapters and value:
                raise ValueError(
                    f"config.training.{key}: expected none beside training.adapters, under which the base "
                    f"is fixed as it is, got {value!r}"
                )
        check_used(
            self.distillation, vars(self.distillation), "config.training.teacher", bool(self.teacher), DISTILLATION
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A stretch of a run on other sequences (paper A.2: 90 % of the steps at 128 tokens, the rest at 512)."""

    steps: int = 0
    """Optimizer steps of this phase."""
    batch_size: int = 0
    """Sequences of a step; 0: training.batch_size."""
    accumulation_steps: int = 0
    """Micro-batches of a step; 0: training.accumulation_steps."""
    options: dict = dataclasses.field(default_factory=dict)
    """Options of the task that differ from the run's."""
