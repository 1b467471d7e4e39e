"""Distillation: chooses a task's objective with a teacher (`objectives/distilled.py`), and the source of the teacher's
answers.

The answers are columns of the rows in memory, computed once, or are added to a batch within the step; both give the
same loss.
"""

import abc
import dataclasses
from collections.abc import Sequence

from official_bert.config import check_length
from official_bert.data.batches.sources import ExampleSource
from official_bert.model_config import ModelConfig
from official_bert.models.pretrainer import ObservedPretrainer
from official_bert.objectives.distilled import COLUMN, Distilled, Teacher, TeacherTargets
from official_bert.objectives.teacher_targets import KINDS, SoftAnswers
from official_bert.objectives.teacher_words import WordTargets
from official_bert.objectives.vectors import NearVectors
from official_bert.runs.configuration.run_config import TEACHER
from official_bert.runs.distillation import kept_answers
from official_bert.runs.distillation.teachers import (
    CRF,
    TaskTeacher,
    config_of_teacher,
    load_observed,
    load_teacher,
)
from official_bert.tasks.data import DataFiles, Resolved, Steps
from official_bert.tasks.task import TaskBase
from official_bert.training_config import DistillationConfig

SETTINGS = "config.training.distillation"
OF_SENTENCES = ("nsp", "sop")  # losses of one head
GIGABYTE = 2**30
# Options of tasks whose models give no answers to learn, or have a teacher already, and why.
REFUSED = {
    "crf": CRF,
    "features": "frozen features have no teacher's words",
    "teacher_columns": "the file has a teacher's scores already",
    "matryoshka": "a teacher's vectors are compared as a whole",
}


def student_of(task: TaskBase) -> "Student":
    """Returns how a task learns from `training.teacher`. Raises ValueError if it cannot."""
    student = (StudentOfWords if task.head == "fill_mask" else StudentOfAnswers)(task)
    student.check()
    return student


@dataclasses.dataclass(frozen=True, eq=False)
class Student(abc.ABC):
    """The way in which a task learns from a teacher."""

    task: TaskBase

    @property
    def settings(self) -> DistillationConfig:
        """The weights of the parts of the loss."""
        return self.task.config.training.distillation

    @property
    def where(self) -> str:
        """The teacher, for messages."""
        return f"{TEACHER}: {self.task.config.training.teacher}"

    def reader(self) -> TaskBase:
        """Returns the task as the teacher would read for it: with its model, vocabulary and casing. Raises ValueError
        if it cannot.
        """
        config, own = config_of_teacher(self.task), self.task.config.model.attention
        check_length(self.task.options.max_seq_length, config.model, f"{self.where}: max_seq_length")
        if (attention := config.model.attention) != own:
            raise ValueError(f"{self.where}: expected model.attention {own}, as the student's, got {attention}")
        return dataclasses.replace(self.task, config=config)

    @abc.abstractmethod
    def check(self) -> None:
        """Raises ValueError if the task cannot learn from a teacher as configured."""

    @abc.abstractmethod
    def load(self) -> TaskTeacher:
        """Loads the teacher. Raises ValueError for one from which the task cannot learn."""

    @abc.abstractmethod
    def targets(self, teacher: Teacher | None) -> TeacherTargets:
        """Returns the targets that the student learns from the teacher's outputs."""

    def objective(self, before: Distilled | None = None) -> Distilled:
        """Returns the objective of a student; its teacher is that of `before`, if given, or is loaded."""
        teacher = before.targets.teacher if before else self.load()
        return Distilled(own=self.task.objective, targets=self.targets(teacher), labels=self.settings.labels)

    @abc.abstractmethod
    def add_answers(self, resolved: Resolved, distilled: Distilled, files: DataFiles, steps: Steps) -> Resolved:
        """Returns the data of a training with the objective of a student, with the teacher's answers if they are kept,
        and a line about that.
        """


class StudentOfAnswers(Student):
    """A student of soft answers: labels, tags, spans, scores, similarities."""

    def check(self) -> None:
        """Raises ValueError for comparisons that only pre-training supports, and for tasks without soft answers."""
        for part in ("states", "relations"):
            if getattr(self.settings, part):
                raise ValueError(
                    f"{SETTINGS}.{part}: expected 0 for task {self.task.config.task}: pre-training alone compares "
                    f"layers, got {getattr(self.settings, part)}"
                )
        for name, reason in REFUSED.items():
            if value := getattr(self.task.options, name, None):
                raise ValueError(f"config.options.{name}: expected none beside training.teacher: {reason}, got {value}")
        if self.task.head not in KINDS or self.task.config.task == "splade":
            raise ValueError(f"{TEACHER}: task {self.task.config.task} has no answers that a student could learn")

    def targets(self, teacher: Teacher | None) -> SoftAnswers:
        own = (part for part in self.task.objective.parts if isinstance(part, NearVectors))
        more = {"own": next(own)} if self.task.head == "embeddings" else {}
        settings = self.settings
        return KINDS[self.task.head](
            teacher=teacher, answers=settings.answers, temperature=settings.temperature, **more
        )

    def add_answers(self, resolved: Resolved, distilled: Distilled, files: DataFiles, steps: Steps) -> Resolved:
        """Also raises ValueError for a teacher whose rows differ so that no answer can be transferred."""
        source, targets, teacher = resolved.train, distilled.targets, distilled.targets.teacher
        assert isinstance(source, ExampleSource) and isinstance(targets, SoftAnswers)
        assert isinstance(teacher, TaskTeacher)
        rows = source if teacher.reads_rows else self._rows_of_teacher(teacher, source, files, steps)
        size = kept_answers.size_of_answers(teacher, targets, rows)
        keeps, note = self._keeps(teacher, size, len(source.examples))
        if keeps:
            answers: Sequence = kept_answers.keep_answers(teacher, targets, rows, files.cache_dir)
            if rows is not source and targets.by_token:
                answers = kept_answers.at_words(answers, rows, source)
            columns = [COLUMN + name for name in targets.outputs] if targets.by_token else ()
            source = source.with_columns(answers, columns)
        return dataclasses.replace(resolved, train=source, distilled=distilled, notes=(*resolved.notes, note))

    def load(self) -> TaskTeacher:
        return load_teacher(self.reader(), self.task)

    def _rows_of_teacher(
        self, teacher: TaskTeacher, source: ExampleSource, files: DataFiles, steps: Steps
    ) -> ExampleSource:
        """Reads the training rows with the teacher's vocabulary. Raises ValueError if its answers do not belong to the
        student's rows.
        """
        if self.task.head == "span":
            raise ValueError(
                f"{self.where}: expected the vocabulary and casing of the student, because answers are places among "
                "its tokens, got others"
            )
        rows = teacher.task.data.read(files, dataclasses.replace(steps, predict=False), teacher.model).train
        assert isinstance(rows, ExampleSource)
        if len(rows.examples) != len(source.examples):
            raise ValueError(
                f"{self.where}: its vocabulary divides the texts into {len(rows.examples)} rows, that of the student "
                f"into {len(source.examples)}; longer rows (options.max_seq_length), or another truncate, have one for "
                "each text"
            )
        return rows

    def _keeps(self, teacher: TaskTeacher, size: int, rows: int) -> tuple[bool, str]:
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
    """A student in pre-training: it learns a teacher's masked-word probabilities, last states, or relations in its last
    layer.
    """

    def check(self) -> None:
        settings, task = self.settings, self.task
        if (objective := getattr(task.options, "objective", "")) not in ("masked_lm", "next_token"):
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
        if settings.layers and getattr(task.options, "first_weights", "random") != "random":
            raise ValueError(
                f"config.options.first_weights: expected random beside {SETTINGS}.student_layers, which gives the "
                f"weights, got {task.options.first_weights}"
            )
        if settings.observes and (others := set(task.objective.names) - {"mlm", "next_token", *OF_SENTENCES}):
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

    def targets(self, teacher: Teacher | None) -> WordTargets:
        values = {name: getattr(self.settings, name) for name in ("answers", "states", "relations", "temperature")}
        return WordTargets(teacher=teacher, relation_heads=self._relation_heads, **values)

    def add_answers(self, resolved: Resolved, distilled: Distilled, files: DataFiles, steps: Steps) -> Resolved:
        note = (
            f"teacher {self.task.config.training.teacher}: its outputs are computed at each step "
            f"({', '.join(distilled.targets.names)})"
        )
        return dataclasses.replace(resolved, distilled=distilled, notes=(*resolved.notes, note))

    def load(self) -> TaskTeacher:
        """Loads the teacher. Raises ValueError for one with another vocabulary, hidden size (for states) or
        direction.
        """
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


def _shown(size: int) -> str:
    return (
        f"{size / GIGABYTE:.2f} GB"
        if size >= GIGABYTE / 10
        else f"{size / 2**20:.1f} MB"
        if size >= 2**20
        else f"{size:,} bytes"
    )
