"""Tasks whose models learn from a teacher too: what the teacher says stands in a batch beside the labels, and has a loss of its own.

The answers are columns of the rows in memory, computed once, or are added to a batch within the step. So a loss sees no difference
between the two, and a batch without them, such as one of an evaluation, has the losses of the task alone.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import tensorflow as tf

from official_bert.config import check_length
from official_bert.data.sources import ExampleSource
from official_bert.layers.attention_mask import make_attention_mask
from official_bert.model_config import ModelConfig
from official_bert.models.observed_pretrainer import OF_RELATIONS, ObservedPretrainer
from official_bert.training.distillation import kept_answers
from official_bert.training.distillation.losses import cosine_distance, divergence, relation_divergence
from official_bert.training.distillation.soft_answers import COLUMN, SoftAnswers, soft_answers
from official_bert.training.distillation.teachers import Teacher, config_of_teacher, load_observed, load_teacher
from official_bert.training.losses import prediction_weights, token_weights
from official_bert.training.run_config import TEACHER
from official_bert.training.task import DataFiles, Fraction, Resolved, Steps, TaskBase

LABELS = "labels"  # the name of a task's own loss, if that has none but `loss`
SETTINGS = "config.training.distillation"
OF_SENTENCES = ("nsp", "sop")  # losses of one head
GIGABYTE = 2 ** 30


@functools.cache
def taught(kind: type[TaskBase]) -> type[TaskBase]:
    """Returns the class of tasks of a kind that learn from `training.teacher`."""
    base = TaughtText if kind.head == "fill_mask" else TaughtTask
    return type(kind.__name__, (base, kind), {"kind": kind, "__module__": kind.__module__, "__doc__": kind.__doc__})


class Taught(TaskBase):
    """The part that all tasks with a teacher have in common. `teacher` is None where nothing is trained."""

    teacher: ClassVar[Teacher | None] = None  # no field: tasks may be made of a configuration in a way of their own
    kind: ClassVar[type[TaskBase]]  # the task without a teacher

    @property
    def distillation(self):
        """The settings."""
        return self.config.training.distillation

    def _labels_name(self, name: str) -> str:
        return LABELS if name == "loss" else name

    @property
    def training_loss_names(self):
        """Those of the task, and one for each part that the teacher has."""
        return (*map(self._labels_name, super().training_loss_names), *self.distillation.of_teacher)

    def losses(self, outputs, batch):
        """The losses of the task and, if a batch has what the teacher says, those on it; each times its factor."""
        task_losses = super().losses(outputs, batch)  # type: ignore[safe-super]
        if not any(name.startswith(COLUMN) for name in batch):
            return task_losses
        parts = {self._labels_name(name): _times(self.distillation.labels, part) for name, part in task_losses.items()}
        return parts | {name: _times(getattr(self.distillation, name), part) for name, part in self._taught_losses(outputs, batch).items()}

    def loss_weights(self, batch):
        """Also the weights of the losses on what the teacher says."""
        task_weights = {self._labels_name(name): weight for name, weight in super().loss_weights(batch).items()}
        return task_weights | dict.fromkeys(self.distillation.of_teacher, self._taught_weight(batch))

    def with_teacher(self) -> Self:
        """Returns the task with its teacher, loaded unless it has it. Raises ValueError for one from which the student cannot learn."""
        return self if self.teacher else self._taught_by(self._load())

    def with_config(self, config):
        """Also with the teacher, if there is one."""
        return super().with_config(config)._taught_by(self.teacher)

    def _taught_by(self, teacher: Teacher | None) -> Self:
        task = type(self)(self.config)
        object.__setattr__(task, "teacher", teacher)
        return task

    def _load(self) -> Teacher:
        raise NotImplementedError

    def reader(self) -> TaskBase:
        """Returns the task as the teacher would read for it: with its model, vocabulary and casing. Raises ValueError if it cannot."""
        config, where = config_of_teacher(self), f"{TEACHER}: {self.config.training.teacher}"
        check_length(self.options.max_seq_length, config.model, f"{where}: max_seq_length")
        if (theirs := config.model.attention) != (own := self.config.model.attention):
            raise ValueError(f"{where}: expected model.attention {own}, as the student's, got {theirs}")
        return self.kind(config)

    def _taught_losses(self, outputs, batch) -> dict[str, Fraction]:
        raise NotImplementedError

    def _taught_weight(self, batch) -> tf.Tensor:
        raise NotImplementedError


class TaughtTask(Taught):
    """A task whose model learns soft answers: labels, tags, spans, scores, nearness."""

    def __post_init__(self):
        super().__post_init__()
        for part in ("states", "relations"):
            if getattr(self.distillation, part):
                raise ValueError(f"{SETTINGS}.{part}: expected 0 for task {self.config.task}: pre-training alone compares layers, got "
                                 f"{getattr(self.distillation, part)}")
        self.soft  # noqa: B018 (refuses tasks without soft answers at once)

    @functools.cached_property
    def soft(self) -> SoftAnswers:
        """What is learned of the teacher's answers."""
        return soft_answers(self)

    def _taught_losses(self, outputs, batch):
        return {"answers": self.soft.loss(outputs, batch)}

    def _taught_weight(self, batch):
        return self.soft.weight(batch)

    def with_answers(self, batch):
        """The batch with the teacher's answers, unless it has them."""
        if self.teacher is None or any(name.startswith(COLUMN) for name in batch):
            return batch
        return dict(batch) | self.soft.columns(self.teacher.model(dict(batch), training=False))

    def read(self, files: DataFiles, steps: Steps, model: Any) -> Resolved:
        """Also loads the teacher, and puts its answers beside the rows to train on, if they are kept.

        Raises ValueError for a teacher of other labels, and for one that reads other rows of which no answer can be taken over.
        """
        resolved: Resolved = super().read(files, steps, model)  # type: ignore[safe-super]
        if not steps.train:
            return resolved
        labelled, source = resolved.task, resolved.train
        assert isinstance(labelled, TaughtTask) and isinstance(source, ExampleSource)
        task = labelled._taught_by(self.teacher).with_teacher()
        teacher = task.teacher
        assert teacher is not None
        rows = source if teacher.reads_rows else task._rows_of_teacher(teacher, source, files, steps)
        size = kept_answers.size_of_answers(teacher, task.soft, rows)
        keeps, note = task._keeps(teacher, size, len(source.examples))
        if keeps:
            answers: Sequence = kept_answers.keep_answers(teacher, task.soft, rows, files.cache_dir)
            if rows is not source and task.soft.by_token:
                answers = kept_answers.at_words(answers, rows, source)
            source = source.with_columns(answers, [COLUMN + name for name in task.soft.outputs] if task.soft.by_token else ())
        return dataclasses.replace(resolved, task=task, train=source, notes=(*resolved.notes, note))

    def _load(self) -> Teacher:
        return load_teacher(self.reader(), self)

    def _rows_of_teacher(self, teacher: Teacher, source: ExampleSource, files: DataFiles, steps: Steps) -> ExampleSource:
        """Reads the training rows with the teacher's vocabulary. Raises ValueError if its answers do not belong to the student's rows."""
        where = f"{TEACHER}: {self.config.training.teacher}"
        if self.head == "span":
            raise ValueError(f"{where}: expected the vocabulary and casing of the student, because answers are places among its tokens, "
                             "got others")
        rows = teacher.task.read(files, dataclasses.replace(steps, predict=False), teacher.model).train
        assert isinstance(rows, ExampleSource)
        if len(rows.examples) != len(source.examples):
            raise ValueError(f"{where}: its vocabulary divides the texts into {len(rows.examples)} rows, that of the student into "
                             f"{len(source.examples)}; longer rows (options.max_seq_length), or another truncate, have one for each text")
        return rows

    def _keeps(self, teacher: Teacher, size: int, rows: int) -> tuple[bool, str]:
        """Whether answers of `size` bytes are kept, and a line about it. Raises ValueError if that cannot be as it is asked for."""
        choice, most = self.distillation.keep, self.distillation.kept_gigabytes
        fits = size <= most * GIGABYTE
        account = f"teacher {self.config.training.teacher}: its answers to {rows:,} rows"
        if choice == "kept" and not fits:
            raise ValueError(f"{SETTINGS}.kept_gigabytes: expected room for {size / GIGABYTE:.2f} GB of answers to {rows:,} rows, got "
                             f"{most:g}; keep: computed computes them at each step instead")
        if choice == "kept" or (choice == "auto" and fits):
            return True, f"{account} are computed once and kept: {_shown(size)}"
        if not teacher.reads_rows:
            raise ValueError(f"{SETTINGS}.keep: expected kept answers ({_shown(size)}, kept_gigabytes {most:g}), because the teacher has "
                             f"another vocabulary than the student and reads rows of its own, got {choice}")
        return False, f"{account} are computed at each step" + ("" if fits else f" ({_shown(size)}: more than kept_gigabytes {most:g})")


class TaughtText(Taught):
    """Pre-training whose model learns a teacher's probabilities of masked words, its last states, or the relations in its last layer."""

    def __post_init__(self):
        super().__post_init__()
        settings = self.distillation
        if (objective := self.option("objective", "")) not in ("masked_lm", "next_token"):
            raise ValueError(f"config.options.objective: expected masked_lm or next_token beside training.teacher, got {objective}")
        if settings.keep == "kept":
            raise ValueError(f"{SETTINGS}.keep: expected auto or computed for pre-training: masks change from epoch to epoch, and the "
                             "answers to a place are as many as there are words, got kept")
        if settings.relations and self.config.model.attention != "bidirectional":
            raise ValueError(f"{SETTINGS}.relations: expected model.attention bidirectional, because every token is related to every other "
                             f"one, got {self.config.model.attention}")
        if settings.layers and self.option("first_weights", "random") != "random":
            raise ValueError(f"config.options.first_weights: expected random beside {SETTINGS}.student_layers, which gives the weights, "
                             f"got {self.options.first_weights}")
        if self._observes and (others := set(self.loss_names) - {"mlm", "next_token", *OF_SENTENCES}):
            raise ValueError(f"{SETTINGS}.states and relations: expected 0 beside the loss {min(others)}, whose head reads the last layer")
        if settings.relations and self.config.model.hidden_size % self._relation_heads:
            raise self._wrong_heads("student", self.config.model)

    @property
    def _observes(self) -> bool:
        """Whether models are compared by their last layers."""
        return bool(self.distillation.states or self.distillation.relations)

    @property
    def _relation_heads(self) -> int:
        return self.distillation.relation_heads or self.config.model.num_attention_heads

    def _wrong_heads(self, whose: str, model: ModelConfig) -> ValueError:
        return ValueError(f"{SETTINGS}.relation_heads: expected a divisor of the {whose}'s hidden_size {model.hidden_size}, got "
                          f"{self._relation_heads}")

    def build_model(self):
        """Builds the model of the task, or one that shows its last layer in training."""
        if not self._observes:
            return super().build_model()  # type: ignore[safe-super]
        return ObservedPretrainer.make(self.config.model, {"next_sentence": bool({*OF_SENTENCES} & {*self.loss_names})},
                                       recompute=self.config.training.recompute)

    def read(self, files: DataFiles, steps: Steps, model: Any) -> Resolved:
        """Also loads the teacher. Raises ValueError for one of another vocabulary, width (of states) or direction."""
        resolved: Resolved = super().read(files, steps, model)  # type: ignore[safe-super]
        if not steps.train:
            return resolved
        assert isinstance(resolved.task, TaughtText)
        task = resolved.task._taught_by(self.with_teacher().teacher)
        note = f"teacher {self.config.training.teacher}: what it says is computed at each step ({', '.join(self.distillation.of_teacher)})"
        return dataclasses.replace(resolved, task=task, notes=(*resolved.notes, note))

    def _load(self) -> Teacher:
        reader = self.reader()
        where, theirs, own = f"{TEACHER}: {self.config.training.teacher}", reader.config.model, self.config.model
        if theirs.vocab_size != own.vocab_size:
            raise ValueError(f"{where}: expected the vocabulary of the student, of {own.vocab_size} entries, because both read the same "
                             f"records, got one of {theirs.vocab_size}")
        if self.distillation.states and theirs.hidden_size != own.hidden_size:
            raise ValueError(f"{SETTINGS}.states: expected a teacher as wide as the student ({own.hidden_size}), got {theirs.hidden_size}; "
                             "relations compare models of any width")
        if self.distillation.relations and theirs.hidden_size % self._relation_heads:
            raise self._wrong_heads("teacher", theirs)
        model = ObservedPretrainer.make(theirs, {"next_sentence": False})
        teacher = load_observed(reader, self, model, bool(self.distillation.answers))
        if not teacher.reads_rows:
            raise ValueError(f"{where}: expected the vocabulary and casing of the student, because both read the same records, got others: "
                             f"{reader.config.tokenizer.vocab_file}")
        return teacher

    def with_answers(self, batch):
        """The batch with what the teacher says of it."""
        if self.teacher is None:
            return batch
        model = self.teacher.model
        outputs = model.observe(dict(batch), training=False) if self._observes else model(dict(batch), training=False)
        wanted = {"answers": ("mlm_logits",), "states": ("states",), "relations": OF_RELATIONS}
        names = [name for part in self.distillation.of_teacher for name in wanted[part]]
        return dict(batch) | {COLUMN + name: tf.stop_gradient(outputs[name]) for name in names}

    def loss_weights(self, batch):
        """Answers count by predictions, states and relations by tokens."""
        words = {} if "answers" not in self.distillation.of_teacher else {"answers": tf.reduce_sum(prediction_weights(batch))}
        return super().loss_weights(batch) | words

    def _taught_weight(self, batch):
        return tf.reduce_sum(token_weights(batch))

    def _taught_losses(self, outputs, batch):
        losses = {}
        if self.distillation.answers:
            losses["answers"] = divergence(outputs["mlm_logits"], batch["teacher_mlm_logits"], prediction_weights(batch),
                                           self.distillation.temperature)
        if self.distillation.states:
            losses["states"] = cosine_distance(outputs["states"], batch["teacher_states"], token_weights(batch))
        if self.distillation.relations:
            each = [relation_divergence(outputs[name], batch[COLUMN + name], token_weights(batch), _visible(batch), self._relation_heads)
                    for name in OF_RELATIONS]
            losses["relations"] = (tf.add_n([total for total, _ in each]), each[0][1])
        return losses


def _times(factor: float, part: Fraction) -> Fraction:
    return factor * part[0], part[1]


def _visible(batch) -> tf.Tensor:
    """Which tokens each one is related to: those of its row or, of packed rows, of its instance; bool [B,1,1 or S,S]."""
    return make_attention_mask(batch["input_mask"], batch.get("instance_ids"))


def _shown(size: int) -> str:
    return f"{size / GIGABYTE:.2f} GB" if size >= GIGABYTE / 10 else f"{size / 2 ** 20:.1f} MB" if size >= 2 ** 20 else f"{size:,} bytes"
