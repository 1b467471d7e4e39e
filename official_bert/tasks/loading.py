"""Loads tasks by name, and models with their tasks. Each family of tasks is a folder."""

import dataclasses
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from official_bert.config import Config, TokenizerConfig
from official_bert.dotted_names import by_name
from official_bert.models import checkpoints
from official_bert.models.encoder import GENERATOR
from official_bert.models.interchange import casing, formats
from official_bert.models.interchange.prefixes import OTHER_READING, local_checkpoint
from official_bert.models.interchange.projects import ours
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.run_folder import CONFIG_FILE, WITHOUT_WEIGHTS, RunFolder, not_a_run, tuned_for
from official_bert.runtimes.finite import require_finite
from official_bert.tasks import answering
from official_bert.tasks.task import TaskBase
from official_bert.text import loading
from official_bert.text.vocab import check_casing, has_capitals, read_entries
from official_bert.typed_values import did_you_mean, without_unknown

# The names that configurations hold, and the classes.
MODULES: Mapping[str, str] = types.MappingProxyType(
    {
        "pretraining": "official_bert.tasks.pretraining.task:Task",
        "classification": "official_bert.tasks.texts.classification:Task",
        "glue": "official_bert.tasks.texts.glue:Task",
        "swag": "official_bert.tasks.texts.swag:Task",
        "retrieval": "official_bert.tasks.retrieval.task:Task",
        "splade": "official_bert.tasks.retrieval.sparse:Task",
        "reranking": "official_bert.tasks.reranking.task:Task",
        "squad": "official_bert.tasks.squad.task:Task",
        "ner": "official_bert.tasks.tagging.task:Task",
        "text_to_text": "official_bert.tasks.writing.task:Task",
    }
)

# the data sets of task `glue`, which a user may name as if they were tasks
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "xnli")


def dataset_name(text: str) -> str | None:
    """Returns the data set of `glue` that a user means by `MRPC`, `sst-2` and the like; None for other names."""
    name = text.lower().replace("-", "").replace("_", "")
    return name if name in GLUE else None


def task_class(name: str, where: str = "config.task", other_names: Sequence[str] = ()) -> type[TaskBase]:
    """Returns the `Task` of a name of `MODULES`, or of a module of the user's own, given by its dotted name.

    Raises ValueError for another name, a module that cannot be imported, and one without a task. The message also lists
    `other_names`, which the caller accepts.
    """
    if name in MODULES:
        return by_name(MODULES[name])
    if "." not in name or not all(part.isidentifier() for part in name.split(".")):
        known = sorted([*MODULES, *other_names])
        raise ValueError(
            f"{where}: expected one of {known}, or a module of yours as in my_project.my_task, got {name!r:.80}; "
            f"{did_you_mean(name, known)}".rstrip("; ")
        )
    try:
        module: types.ModuleType = by_name(name)
    except ImportError as error:
        raise ValueError(
            f"{where}: {name} cannot be imported ({error}); is its folder the current one or in PYTHONPATH?"
        ) from None
    task = getattr(module, "Task", None)
    if not (isinstance(task, type) and issubclass(task, TaskBase) and hasattr(task, "Options")):
        raise ValueError(
            f"{where}: {name}: expected a class Task, derived from TaskBase, with its Options, and found none"
        )
    return task


def load_task(config: Config, run: str = "") -> TaskBase:
    """Returns the task that `config.task` names.

    Raises ValueError if there is none or it cannot learn from `training.teacher` or, for that of a `run`, if it is a
    module that the user has not named, or one in the run's own folder: a run is data, and never decides which code
    runs.
    """
    if run and config.task not in MODULES and (spec := _spec_of(config.task)) is not None:
        for place in [spec.origin or "", *(spec.submodule_search_locations or ())]:
            if os.path.realpath(place).startswith(os.path.join(os.path.realpath(run), "")):
                raise ValueError(
                    f"{os.path.join(run, CONFIG_FILE)}: task: {config.task} lies in the run's own folder, whose code "
                    "is never executed; if you trust it, move it to a folder of PYTHONPATH"
                )
    if run:
        check_named(config.task, run)
    cls = task_class(config.task)
    task = cls(dataclasses.replace(config, options=without_unknown(cls.Options, config.options, "options.")))
    if config.training.teacher:
        check: Callable[[TaskBase], Any] = by_name("official_bert.runs.distillation.students:student_of")
        check(task)
    return task


def check_named(task: str, folder: str) -> None:
    """Raises ValueError for a task outside this package that the user has not named, only the files in a folder; it is
    not imported.

    The user names it with --task, or imports it.
    """
    if task not in MODULES and task not in sys.modules:
        raise ValueError(
            f"{os.path.join(folder, CONFIG_FILE)}: task: {task!r:.80} is outside this package and is not imported "
            f"because a file names it; if it is your module, give --task={task} (in Python: import {task} first)"
        )


def _spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    """Finds the package of a module without running it; None if there is none."""
    try:
        return importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return None


def restore_for_inference(
    path: str, vocab_file: str = "", do_lower_case: bool | None = None, base: str = ""
) -> tuple[TaskBase, keras.Model]:
    """Returns the task and the model, weights loaded, of a path that `restore_model` takes.

    Vocabulary and casing come from the files unless they are given. Also raises ValueError if a checkpoint that is not
    a run has no vocabulary (a run may have been trained without one), or if its casing differs from the given one.
    """
    path = checkpoints.merged_copy(path, base)
    config, model = restore_model(path, vocab_file, do_lower_case)
    tokenizer = dataclasses.replace(config.tokenizer, vocab_file=vocab_file or config.tokenizer.vocab_file)
    if not tokenizer.vocab_file and RunFolder.holding(path) is None:
        formats.module_of("hugging_face").tokenizers.refuse_ids_alone(path)
        raise ValueError(f"{path}: no vocabulary found beside it; --vocab_file gives it")
    return load_task(dataclasses.replace(config, tokenizer=tokenizer)), model


def restore_model(path: str, vocab_file: str = "", do_lower_case: bool | None = None) -> tuple[Config, keras.Model]:
    """Returns the configuration and the model, weights loaded, of a training run, of the best run of a search, of one
    checkpoint in a run, or of a checkpoint of any format.

    The head of a checkpoint of another format decides its task. Without a usable head, and for a converted encoder, the
    model is a `BertEncoder`. Raises ValueError if there is no checkpoint, or if weights are missing.
    """
    path = local_checkpoint(best.path if (best := RunFolder(path).best_of_search) else path)
    prefix = checkpoints.checkpoint_at(path)
    if not os.path.exists(path) and prefix is None:
        raise not_a_run(path, f"no such file or folder, {OTHER_READING}", " or a checkpoint")
    if (run := RunFolder.holding(path)) is None:
        stored = _answering(formats.read(path))
        config = ours.config_of(stored)
        known = casing.is_lower_case(casing.with_vocabulary(stored, vocab_file))
        lower_case = casing.agreed(known, do_lower_case, stored.origin) is not False
        tokenizer = TokenizerConfig(vocab_file=formats.vocab_file_of(stored), do_lower_case=lower_case)
        return dataclasses.replace(config, tokenizer=tokenizer), formats.make_model(stored)
    if prefix is None:
        raise not_a_run(path, WITHOUT_WEIGHTS)
    config = run.require_config()
    if run.vocab_file or not vocab_file:
        casing.agreed(config.tokenizer.do_lower_case, do_lower_case, run.path)
    else:
        asked = casing.agreed(config.tokenizer.do_lower_case and None, do_lower_case, run.path)
        config = dataclasses.replace(config, tokenizer=_tokenizer(vocab_file, asked))
    task = load_task(config, run.path)
    return task.answers.with_tuned(tuned_for(prefix)).config, _restore_run(task, prefix)


def _tokenizer(vocab_file: str, do_lower_case: bool | None) -> TokenizerConfig:
    """Returns the tokenizer of a run that was trained without a vocabulary: its casing, if nobody has said it, is that
    of the entries.

    Raises ValueError for lower-cased text beside capitals.
    """
    if (lower := loading.lower_cases(vocab_file)) is not None:
        return TokenizerConfig(
            vocab_file=vocab_file, do_lower_case=casing.agreed(lower, do_lower_case, vocab_file) is not False
        )
    entries = read_entries(vocab_file)
    lower_case = not has_capitals(entries) if do_lower_case is None else do_lower_case
    check_casing(vocab_file, entries, lower_case)
    return TokenizerConfig(vocab_file=vocab_file, do_lower_case=lower_case)


def _restore_run(task: TaskBase, prefix: str) -> keras.Model:
    """Returns the task's model with the weights of our checkpoint; its encoder if only that was converted.

    Of a discriminator and its generator it is the discriminator, with tables that are whole.
    """
    try:
        stored_names = ours.weight_names(prefix)
        if any(name.startswith(f"{GENERATOR}/") for name in stored_names):
            return formats.make_model(_answering(formats.read(prefix)))
        model = task.build_model()
        if RunFolder.around(prefix).base:
            answering.take_all(task, model, prefix, lambda _: None)
            return model
        if missing := sorted(set(checkpoints.named_weights(model)) - set(stored_names)):
            unread = () if task.reads_pooler(model) else ("pooler/",)  # which a published tagger lacks
            needed = [name for name in missing if not name.startswith(unread)]
            if needed and task.config.task not in (ours.TASKS[""], ours.VECTORS):
                raise ValueError(
                    f"{prefix}: expected every weight of task {task.config.task}, missing: {', '.join(needed[:6])}"
                )
            return formats.make_model(_answering(formats.read(prefix)))
        checkpoints.weights_checkpoint(model).read(prefix).assert_existing_objects_matched().expect_partial()
        require_finite(checkpoints.named_weights(model), prefix)
        return model
    except (tf.errors.OpError, IndexError) as error:
        raise ValueError(f"{prefix}: damaged checkpoint: {str(error).splitlines()[0]}") from None


def _answering(stored: StoredModel) -> StoredModel:
    """Returns the model without unused weights: those that are not BERT's, and a next-sentence head without a masked-LM
    head.
    """
    if stored.unknown:
        logging.warning("%s: not used: %s", stored.origin, ", ".join(stored.unknown[:6]))
    for warning in stored.warnings:
        logging.warning("%s: %s", stored.origin, warning)
    if stored.why_no_vectors:
        raise ValueError(f"{stored.why_no_vectors}; --init_checkpoint takes its encoder alone")
    alone = (
        not stored.head
        or stored.pooling
        or (stored.head == "pretraining" and "masked_lm/output_bias" not in stored.weights)
    )
    return formats.encoder_of(stored) if alone else dataclasses.replace(stored, unknown=())
