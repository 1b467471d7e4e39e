"""Distillation: students, whose models learn from a teacher beside their labels. Each task has one kind of student.

The teacher's answers stand in a batch beside the labels, and have a loss of their own. They are columns of the rows in
memory, computed once, or are added to a batch within the step: the loss is the same for both.
"""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Self

import tensorflow as tf

from official_bert.config import check_length
from official_bert.data.sources import ExampleSource
from official_bert.layers.attention_mask import make_attention_mask
from official_bert.model_config import ModelConfig
from official_bert.models.pretrainer import OF_RELATIONS, ObservedPretrainer
from official_bert.objectives.distillation_losses import cosine_distance, divergence, relation_divergence
from official_bert.objectives.losses import prediction_weights, token_weights
from official_bert.training.distillation import kept_answers
from official_bert.training.distillation.soft_answers import COLUMN, SoftAnswers, soft_answers
from official_bert.training.distillation.teachers import Teacher, config_of_teacher, load_observed, load_teacher
from official_bert.training.run_config import TEACHER
from official_bert.training.task import Batch, DataFiles, Fraction, Outputs, Resolved, Steps, TaskBase
from official_bert.training_config import DistillationConfig

LABELS = "labels"  # the name of a task's own loss, if that has none but `loss`
SETTINGS = "config.training.distillation"
OF_SENTENCES = ("nsp", "sop")  # losses of one head
GIGABYTE = 2**30


def as_student(task: TaskBase) -> TaskBase:
    """Returns a task that learns from `training.teacher`. Raises ValueError if it cannot."""
    student = (StudentOfWords if task.head == "fill_mask" else StudentOfAnswers)(task)
    student.check()
    return student.task_of()


@dataclasses.dataclass(frozen=True, eq=False)
class Student(abc.ABC):
    """A task as a training step sees it that learns from a teacher, too. `teacher` is None where nothing is trained."""

    task: TaskBase
    teacher: Teacher | None = None

    @property
    def settings(self) -> DistillationConfig:
        """How much each part of the loss counts."""
        return self.task.config.training.distillation

    @property
    def where(self) -> str:
        """The teacher, for messages."""
        return f"{TEACHER}: {self.task.config.training.teacher}"

    @property
    def loss_names(self) -> Sequence[str]:
        """Those of the task, and one for each part that the teacher has."""
        return (*map(_name_beside_teacher, self.task.loss_names), *self.settings.of_teacher)

    def losses(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        """The losses of the task and those on the teacher's answers in the batch, each times its factor."""
        task_losses = {
            _name_beside_teacher(name): _times(self.settings.labels, loss)
            for name, loss in self.task.losses(outputs, batch).items()
        }
        return task_losses | {
            name: _times(getattr(self.settings, name), loss)
            for name, loss in self.teacher_losses(outputs, batch).items()
        }

    def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Also the weights of the losses on the teacher's answers."""
        task_weights = {_name_beside_teacher(name): weight for name, weight in self.task.loss_weights(batch).items()}
        return task_weights | self.teacher_weights(batch)

    def of(self, task: TaskBase) -> Self:
        """The same student of another configuration."""
        return dataclasses.replace(self, task=task)

    def task_of(self) -> TaskBase:
        """Returns the task with this student."""
        return dataclasses.replace(self.task, student=self)

    def with_teacher(self) -> Self:
        """Returns the student with its teacher, loaded unless it has it. Raises ValueError for one from which it cannot
        learn.
        """
        return self if self.teacher else dataclasses.replace(self, teacher=self.load())

    def reader(self) -> TaskBase:
        """Returns the task as the teacher would read for it: with its model, vocabulary and casing. Raises ValueError
        if it cannot.
        """
        config, own = config_of_teacher(self.task), self.task.config.model.attention
        check_length(self.task.options.max_seq_length, config.model, f"{self.where}: max_seq_length")
        if (attention := config.model.attention) != own:
            raise ValueError(f"{self.where}: expected model.attention {own}, as the student's, got {attention}")
        return dataclasses.replace(self.task, config=config, student=None)

    @abc.abstractmethod
    def check(self) -> None:
        """Raises ValueError if the task cannot learn from a teacher as it is asked to."""

    @abc.abstractmethod
    def load(self) -> Teacher:
        """Loads the teacher."""

    @abc.abstractmethod
    def with_answers(self, batch: Batch) -> Batch:
        """The batch with the teacher's answers, unless it has them."""

    @abc.abstractmethod
    def teacher_losses(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        """The losses on the teacher's answers."""

    @abc.abstractmethod
    def teacher_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Their weights, from the batch alone."""

    @abc.abstractmethod
    def distilled(self, resolved: Resolved, files: DataFiles, steps: Steps) -> Resolved:
        """Returns the data to train on with the teacher, and with its answers if they are kept."""


class StudentOfAnswers(Student):
    """A student of soft answers: labels, tags, spans, scores, nearness."""

    @functools.cached_property
    def soft(self) -> SoftAnswers:
        """What is learned of the teacher's answers."""
        return soft_answers(self.task)

    def check(self) -> None:
        """Refuses what pre-training alone compares, and tasks without soft answers."""
        for part in ("states", "relations"):
            if getattr(self.settings, part):
                raise ValueError(
                    f"{SETTINGS}.{part}: expected 0 for task {self.task.config.task}: pre-training alone compares "
                    f"layers, got {getattr(self.settings, part)}"
                )
        soft_answers(self.task)

    def teacher_losses(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        return {"answers": self.soft.loss(outputs, batch)}

    def teacher_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        return {"answers": self.soft.weight(batch)}

    def with_answers(self, batch: Batch) -> Batch:
        if self.teacher is None or any(name.startswith(COLUMN) for name in batch):
            return batch
        return dict(batch) | self.soft.columns(self.teacher.model(dict(batch), training=False))

    def distilled(self, resolved: Resolved, files: DataFiles, steps: Steps) -> Resolved:
        """Also puts the teacher's answers beside the rows to train on, if they are kept.

        Raises ValueError for a teacher of other labels, and for one that reads other rows of which no answer can be
        taken over.
        """
        student, source = self.with_teacher(), resolved.train
        teacher = student.teacher
        assert teacher is not None and isinstance(source, ExampleSource)
        rows = source if teacher.reads_rows else student._rows_of_teacher(teacher, source, files, steps)
        size = kept_answers.size_of_answers(teacher, student.soft, rows)
        keeps, note = student._keeps(teacher, size, len(source.examples))
        if keeps:
            answers: Sequence = kept_answers.keep_answers(teacher, student.soft, rows, files.cache_dir)
            if rows is not source and student.soft.by_token:
                answers = kept_answers.at_words(answers, rows, source)
            source = source.with_columns(
                answers, [COLUMN + name for name in student.soft.outputs] if student.soft.by_token else ()
            )
        return dataclasses.replace(resolved, task=student.task_of(), train=source, notes=(*resolved.notes, note))

    def load(self) -> Teacher:
        return load_teacher(self.reader(), self.task)

    def _rows_of_teacher(
        self, teacher: Teacher, source: ExampleSource, files: DataFiles, steps: Steps
    ) -> ExampleSource:
        """Reads the training rows with the teacher's vocabulary. Raises ValueError if its answers do not belong to the
        student's rows.
        """
        if self.task.head == "span":
            raise ValueError(
                f"{self.where}: expected the vocabulary and casing of the student, because answers are places among "
                "its tokens, got others"
            )
        rows = teacher.task.read(files, dataclasses.replace(steps, predict=False), teacher.model).train
        assert isinstance(rows, ExampleSource)
        if len(rows.examples) != len(source.examples):
            raise ValueError(
                f"{self.where}: its vocabulary divides the texts into {len(rows.examples)} rows, that of the student "
                f"into {len(source.examples)}; longer rows (options.max_seq_length), or another truncate, have one for "
                "each text"
            )
        return rows

    def _keeps(self, teacher: Teacher, size: int, rows: int) -> tuple[bool, str]:
        """Whether answers of `size` bytes are kept, and a line about it. Raises ValueError if that cannot be as it is
        asked for.
        """
        choice, most = self.settings.keep, self.settings.kept_gigabytes
        fits = size <= most * GIGABYTE
        account = f"teacher {self.task.config.training.teacher}: its answers to {rows:,} rows"
        if choice == "kept" and not fits:
            raise ValueError(
                f"{SETTINGS}.kept_gigabytes: expected room for {size / GIGABYTE:.2f} GB of answers to {rows:,} rows, "
                f"got {most:g}; keep: computed computes them at each step instead"
            )
        if choice == "kept" or (choice == "auto" and fits):
            return True, f"{account} are computed once and cached: {_shown(size)}"
        if not teacher.reads_rows:
            raise ValueError(
                f"{SETTINGS}.keep: expected kept answers ({_shown(size)}, kept_gigabytes {most:g}), because the "
                f"teacher has another vocabulary than the student and reads rows of its own, got {choice}"
            )
        return False, f"{account} are computed at each step" + (
            "" if fits else f" ({_shown(size)}: more than kept_gigabytes {most:g})"
        )


class StudentOfWords(Student):
    """A student in pre-training: it learns a teacher's probabilities of masked words, its last states, or the relations
    in its last layer.
    """

    def check(self) -> None:
        settings, task = self.settings, self.task
        if (objective := task.option("objective", "")) not in ("masked_lm", "next_token"):
            raise ValueError(
                f"config.options.objective: expected masked_lm or next_token beside training.teacher, got {objective}"
            )
        if settings.keep == "kept":
            raise ValueError(
                f"{SETTINGS}.keep: expected auto or computed for pre-training: masks change from epoch to epoch, and "
                "the answers to a place are as many as there are words, got kept"
            )
        if settings.relations and task.config.model.attention != "bidirectional":
            raise ValueError(
                f"{SETTINGS}.relations: expected model.attention bidirectional, because every token is related to "
                f"every other one, got {task.config.model.attention}"
            )
        if settings.layers and task.option("first_weights", "random") != "random":
            raise ValueError(
                f"config.options.first_weights: expected random beside {SETTINGS}.student_layers, which gives the "
                f"weights, got {task.options.first_weights}"
            )
        if settings.observes and (others := set(task.loss_names) - {"mlm", "next_token", *OF_SENTENCES}):
            raise ValueError(
                f"{SETTINGS}.states and relations: expected 0 beside the loss {min(others)}, whose head reads the "
                f"last layer"
            )
        self._check_heads("student", task.config.model)

    @property
    def _relation_heads(self) -> int:
        return self.settings.relation_heads or self.task.config.model.num_attention_heads

    def _check_heads(self, whose: str, model: ModelConfig) -> None:
        if self.settings.relations and model.hidden_size % self._relation_heads:
            raise ValueError(
                f"{SETTINGS}.relation_heads: expected a divisor of the {whose}'s hidden_size {model.hidden_size}, got "
                f"{self._relation_heads}"
            )

    def distilled(self, resolved: Resolved, files: DataFiles, steps: Steps) -> Resolved:
        note = (
            f"teacher {self.task.config.training.teacher}: its outputs are computed at each step "
            f"({', '.join(self.settings.of_teacher)})"
        )
        return dataclasses.replace(resolved, task=self.with_teacher().task_of(), notes=(*resolved.notes, note))

    def load(self) -> Teacher:
        """Raises ValueError for a teacher of another vocabulary, width (of states) or direction."""
        reader, own = self.reader(), self.task.config.model
        theirs = reader.config.model
        if theirs.vocab_size != own.vocab_size:
            raise ValueError(
                f"{self.where}: expected the vocabulary of the student, of {own.vocab_size} entries, because both read "
                f"the same records, got one of {theirs.vocab_size}"
            )
        if self.settings.states and theirs.hidden_size != own.hidden_size:
            raise ValueError(
                f"{SETTINGS}.states: expected a teacher as wide as the student ({own.hidden_size}), got "
                f"{theirs.hidden_size}; relations compare models of any width"
            )
        self._check_heads("teacher", theirs)
        model = ObservedPretrainer.make(theirs, {"next_sentence": False})
        teacher = load_observed(reader, self.task, model, bool(self.settings.answers))
        if not teacher.reads_rows:
            raise ValueError(
                f"{self.where}: expected the vocabulary and casing of the student, because both read the same records, "
                f"got others: {reader.config.tokenizer.vocab_file}"
            )
        return teacher

    def with_answers(self, batch: Batch) -> Batch:
        if self.teacher is None:
            return batch
        model = self.teacher.model
        outputs = (
            model.observe(dict(batch), training=False) if self.settings.observes else model(dict(batch), training=False)
        )
        outputs_of = {"answers": ("mlm_logits",), "states": ("states",), "relations": OF_RELATIONS}
        names = [name for part in self.settings.of_teacher for name in outputs_of[part]]
        return dict(batch) | {COLUMN + name: tf.stop_gradient(outputs[name]) for name in names}

    def teacher_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Answers count by predictions, states and relations by tokens."""
        return {
            name: tf.reduce_sum(prediction_weights(batch) if name == "answers" else token_weights(batch))
            for name in self.settings.of_teacher
        }

    def teacher_losses(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        losses = {}
        if self.settings.answers:
            losses["answers"] = divergence(
                outputs["mlm_logits"], batch["teacher_mlm_logits"], prediction_weights(batch), self.settings.temperature
            )
        if self.settings.states:
            losses["states"] = cosine_distance(outputs["states"], batch["teacher_states"], token_weights(batch))
        if self.settings.relations:
            each = [
                relation_divergence(
                    outputs[name], batch[COLUMN + name], token_weights(batch), _visible(batch), self._relation_heads
                )
                for name in OF_RELATIONS
            ]
            losses["relations"] = (tf.add_n([total for total, _ in each]), each[0][1])
        return losses


def _name_beside_teacher(name: str) -> str:
    """The name of a task's loss among those of a student."""
    return LABELS if name == "loss" else name


def _times(factor: float, loss: Fraction) -> Fraction:
    return factor * loss[0], loss[1]


def _visible(batch: Batch) -> tf.Tensor:
    """The tokens that each is related to: those of its row or, if packed, of its instance; bool [B,1,1 or S,S]."""
    return make_attention_mask(batch["input_mask"], batch.get("instance_ids"))


def _shown(size: int) -> str:
    return (
        f"{size / GIGABYTE:.2f} GB"
        if size >= GIGABYTE / 10
        else f"{size / 2**20:.1f} MB"
        if size >= 2**20
        else f"{size:,} bytes"
    )
