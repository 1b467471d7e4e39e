"""The teacher of a distillation: a trained model of any format, loaded with the task of its student."""

import dataclasses

import keras

from official_bert.config import Config, build, merge
from official_bert.model_config import ModelConfig
from official_bert.models.checkpoints import initialize_from
from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import ours
from official_bert.objectives.distilled import Teacher
from official_bert.runs.configuration.run_config import TEACHER, checkpoint_values, named_as_teacher
from official_bert.tasks import answering
from official_bert.tasks.task import TaskBase

CRF = "a CRF answers with whole chains of tags, and its teacher's single tags say little about them"
OWN_OPTIONS = ("pooling",)  # of a task, which a teacher has as it was trained


@dataclasses.dataclass(frozen=True, eq=False)
class TaskTeacher(Teacher):
    """A teacher model, and the student's task with the teacher's configuration."""

    task: TaskBase
    reads_rows: bool  # whether the rows of the student are the teacher's too: both have one vocabulary


def config_of_teacher(task: TaskBase) -> Config:
    """Returns the configuration of a student's task with model, vocabulary and casing of its teacher.

    Raises ValueError if there is no such checkpoint, or no configuration beside it.
    """
    path = task.config.training.teacher
    with named_as_teacher():
        values = checkpoint_values(path).values
    if "model" not in values:
        raise ValueError(
            f"{TEACHER}: {path}: expected a checkpoint with the configuration of its model beside it, got weights alone"
        )
    names = [key for key in OWN_OPTIONS if hasattr(task.options, key)]
    theirs = ours.class_options(formats.read(path)) if names else {}  # which reads all weights
    own_options = {key: theirs[key] for key in names if key in theirs}
    # A teacher without a vocabulary of its own has been trained on records: it reads those of the student.
    tokenizer = dataclasses.replace(task.config.tokenizer, **values.get("tokenizer", {}))
    return dataclasses.replace(
        task.config,
        model=build(ModelConfig, values["model"], TEACHER),
        tokenizer=tokenizer,
        options=merge(task.config.options, own_options),
    )


def load_teacher(reader: TaskBase, student: TaskBase) -> TaskTeacher:
    """Loads the teacher for `reader`, the student's task with the teacher's configuration.

    Raises ValueError for missing weights, such as those of a head of this kind with these labels, and for a teacher
    with a CRF.
    """
    model = reader.build_model()
    with named_as_teacher():
        result = answering.take_all(reader, model, student.config.training.teacher, report=lambda _: None)
    if any(name.startswith("crf/") for name in result.unused):
        raise ValueError(f"{TEACHER}: {result.origin}: expected a teacher without a CRF: {CRF}")
    model.trainable = False
    return TaskTeacher(model, reader, reads_alike(reader, student))


def load_observed(reader: TaskBase, student: TaskBase, model: keras.Model, needs_words: bool) -> TaskTeacher:
    """Loads a teacher into a pre-training model; without `needs_words` an encoder alone is enough. Raises ValueError if
    weights are missing.
    """
    with named_as_teacher():
        result = initialize_from(model, student.config.training.teacher)
    if missing := [name for name in result.new if needs_words and name.startswith("masked_lm/")]:
        raise ValueError(
            f"{TEACHER}: {result.origin}: expected a head for words, got none ({missing[0]}); "
            "training.distillation.answers 0 learns from states or relations alone"
        )
    model.trainable = False
    return TaskTeacher(model, reader, reads_alike(reader, student))


def reads_alike(first_task: TaskBase, second_task: TaskBase) -> bool:
    """Returns whether two tasks make the same rows from a text. Without a vocabulary, as with records, compares the
    vocabulary sizes.
    """
    if not (first_task.config.tokenizer.vocab_file and second_task.config.tokenizer.vocab_file):
        return first_task.config.model.vocab_size == second_task.config.model.vocab_size
    first, second = first_task.tokenizer, second_task.tokenizer
    return (first.kind, first.do_lower_case, first.vocab) == (second.kind, second.do_lower_case, second.vocab)
