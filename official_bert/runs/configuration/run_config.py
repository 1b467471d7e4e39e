"""Makes the configuration of a run from flags, a YAML, a checkpoint's files and the run already in the folder."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from official_bert.config import (
    FINE_TUNING,
    CheckpointValues,
    Config,
    ConfigSources,
    TokenizerConfig,
    TrainingConfig,
    build,
    merge,
    resolve_config,
)
from official_bert.fields import refuse_unused
from official_bert.models.interchange import casing, classes, formats
from official_bert.models.interchange.projects import ours
from official_bert.models.interchange.stored_models import OBJECTIVE_OPTIONS
from official_bert.run_folder import WITHOUT_WEIGHTS, RunFolder, not_a_run
from official_bert.storage.files import exists
from official_bert.text import loading
from official_bert.text.loading import VOCAB_FILE

TEACHER = "config.training.teacher"
# Pairs: a key, and the key that replaces it unless 0.
OVERRIDDEN_BY = (
    ("training.steps", "training.hours"),
    ("training.epochs", "training.hours"),
    ("training.epochs", "training.steps"),
    ("training.eval_epochs", "training.eval_every"),
    ("optimizer.warmup_proportion", "optimizer.warmup_steps"),
    ("optimizer.decay_proportion", "optimizer.decay_steps"),
)
DEFAULTS: Mapping[str, Any] = merge(
    FINE_TUNING, {"training": {"keep_checkpoints": 1, "eval_epochs": 1.0, "answer_with": "best", "report": True}}
)


def checkpoint_values(
    init_checkpoint: str, output_dir: str = "", vocab_file: str = "", pretraining: bool = False
) -> CheckpointValues:
    """Returns the configuration values in a checkpoint's files: the model, the vocabulary (unless one is given), the
    casing.

    For `pretraining` also the objective of a checkpoint that predicts the next token or detects replaced tokens, and
    the sentence task of one that learned sentence order: training continues with them unless told otherwise.

    If `output_dir` has a run, the values come from its configuration, because the checkpoint may be gone. Raises
    ValueError if there is no checkpoint, or if the vocabulary is not of its casing.
    """
    if not init_checkpoint:
        return CheckpointValues({})
    run = RunFolder(output_dir)
    if begun := run.config():
        values = {"model": dataclasses.asdict(begun.model), "tokenizer": dataclasses.asdict(begun.tokenizer)}
        if not run.casing_is_chosen:
            del values["tokenizer"]
        objective = _objectives(begun.options, begun.options.get("sentence_task", "")) if pretraining else {}
        return CheckpointValues(values | objective, f"--output_dir={output_dir}")
    try:
        stored = formats.read(init_checkpoint)
    except ValueError as error:
        raise ValueError(f"--init_checkpoint={error}") from None
    model = {} if stored.config is None else {"model": dataclasses.asdict(stored.config)}
    lower_case = casing.is_lower_case(casing.with_vocabulary(stored, vocab_file))
    tokenizer = {"vocab_file": formats.vocab_file_of(stored), "do_lower_case": lower_case}
    tokenizer_values = {key: value for key, value in tokenizer.items() if value not in ("", None)}
    objective = (
        _objectives({"objective": stored.objective, **stored.objective_options}, stored.sentence_task)
        if pretraining
        else {}
    )
    return CheckpointValues(model | {"tokenizer": tokenizer_values} | objective, f"--init_checkpoint={stored.origin}")


def of_training(
    sources: ConfigSources,
    init_checkpoint: str,
    run: RunFolder,
    defaults: Mapping[str, Any] | None = DEFAULTS,
    report: Callable[[str], None] = print,
    pretraining: bool = False,
) -> Config:
    """Returns the configuration of a training from the user's settings, its initial checkpoint, and its vocabulary.

    Raises ValueError as `resolve_config` and `checkpoint_values` do.
    """
    inherited, asked = sources.read()
    vocab_file = build(TokenizerConfig, asked.get("tokenizer", {}), "config.tokenizer").vocab_file
    checkpoint = _first_values(merge(inherited, asked), init_checkpoint, run.path, vocab_file, pretraining)
    return resolve_config(
        sources, defaults=defaults, checkpoint=checkpoint, report=report, count_entries=counter_of_entries(run)
    )


def _first_values(values: Mapping[str, Any], init_checkpoint: str, *of_run: Any) -> CheckpointValues:
    """Returns `checkpoint_values` of `init_checkpoint`, or of the layers of its teacher that `values`, a configuration,
    names.

    Raises ValueError as that does, and if there are both.
    """
    section = values.get("training")
    if not (isinstance(section, Mapping) and "distillation" in section):
        return checkpoint_values(init_checkpoint, *of_run)
    training = build(TrainingConfig, section, "config.training")
    start, layers = initial_checkpoint_of(training, init_checkpoint), training.distillation.layers
    with named_as_teacher(bool(layers)):
        stored = checkpoint_values(start, *of_run)
    if not layers:
        return stored
    model = {"model": stored.values["model"] | {"num_hidden_layers": len(layers)}} if "model" in stored.values else {}
    return CheckpointValues({**stored.values, **model}, stored.origin.replace("--init_checkpoint=", f"{TEACHER}: "))


def initial_checkpoint_of(training: TrainingConfig, init_checkpoint: str) -> str:
    """Returns the checkpoint that gives a run's first weights: `init_checkpoint` or, for a student of some layers, its
    teacher.

    Raises ValueError if there are both.
    """
    if not (layers := training.distillation.layers):
        return init_checkpoint
    if init_checkpoint not in ("", training.teacher):
        raise ValueError(
            f"--init_checkpoint={init_checkpoint}: expected none beside training.distillation.student_layers, because "
            f"layers {', '.join(map(str, layers))} of {training.teacher} give the weights"
        )
    return training.teacher


@contextlib.contextmanager
def named_as_teacher(is_teacher: bool = True) -> Iterator[None]:
    """Rewrites errors about a checkpoint to name training.teacher instead of --init_checkpoint if the checkpoint
    `is_teacher`.
    """
    try:
        yield
    except ValueError as error:
        if not is_teacher:
            raise
        raise ValueError(str(error).replace("--init_checkpoint=", f"{TEACHER}: ")) from None


def counter_of_entries(run: RunFolder) -> Callable[[str], int]:
    """Returns a function that counts the entries of a vocabulary file or, without a file, of the run's vocabulary; 0
    without both.
    """

    def count(vocab_file: str) -> int:
        path = vocab_file if vocab_file and exists(vocab_file) else run.vocab_file
        return max(loading.entries(path).values()) + 1 if path else 0

    return count


def _objectives(options: Mapping[str, Any], sentence_task: str) -> dict[str, Any]:
    """The values of what a model of pre-training has learned, as far as they are not the defaults; `options` are those
    of its run.
    """
    others = options.get("objective", "") not in ("", "masked_lm")
    values = {key: options[key] for key in ("objective", *OBJECTIVE_OPTIONS) if key in options} if others else {}
    if sentence_task == "sop":
        values["sentence_task"] = sentence_task
    return {"options": values} if values else {}


def with_classes_of(config: Config, init_checkpoint: str) -> Config:
    """Returns the configuration with the checkpoint's labels and kind of answer, for use without training data."""
    if not init_checkpoint or config.task not in ("classification", "ner") or config.options.get("labels"):
        return config
    stored = formats.read(init_checkpoint)
    stored = formats.as_head(stored, "tagger") if config.task == "ner" and stored.head == "classifier" else stored
    if stored.head not in ("classifier", "tagger"):
        return config
    class_options = ours.class_options(stored)
    if (columns := config.options.get("label_columns")) and not classes.named(class_options.get("labels", ())):
        class_options |= {"labels": list(columns)}  # the columns name what the checkpoint does not
    return dataclasses.replace(config, options=merge(class_options, config.options))


def with_objective_of(config: Config, init_checkpoint: str, report: Callable[[str], None] = print) -> Config:
    """Returns the configuration with a checkpoint's objective and its sentence task (none if it has no head for one),
    to evaluate its pre-training.
    """
    stored, options = formats.read(init_checkpoint), config.options
    if stored.objective not in ("", options.get("objective", "masked_lm")):
        report(f"{stored.origin}: its objective, {stored.objective}, is evaluated")
        options = merge(options, {"objective": stored.objective, **stored.objective_options})
    if ours.HEAD_FOR_SENTENCES not in stored.weights and options.get("sentence_task") != "none":
        report(f"{stored.origin}: it has no head for sentences; only words are evaluated")
        options = merge(options, {"sentence_task": "none"})
    elif stored.sentence_task not in ("", options.get("sentence_task", "nsp")) and options.get("sentence_loss", True):
        report(f"{stored.origin}: its sentence task, {stored.sentence_task}, is evaluated")
        options = merge(options, {"sentence_task": stored.sentence_task})
    return dataclasses.replace(config, options=options)


def with_vocabulary_of(config: Config, run: RunFolder, may_change: bool = False) -> Config:
    """Returns the configuration with the vocabulary and casing of the run in a folder, to evaluate it, unless another
    vocabulary `may_change` them.

    Raises ValueError for another vocabulary or casing than that of the run.
    """
    begun, path = run.config(), config.tokenizer.vocab_file
    if begun is None or not begun.tokenizer.vocab_file or not exists(begun.tokenizer.vocab_file):
        return config
    if not path:
        return dataclasses.replace(config, tokenizer=begun.tokenizer)
    if not may_change:
        if loading.digest(path) != loading.digest(begun.tokenizer.vocab_file) and (
            loading.entries(path) != loading.entries(begun.tokenizer.vocab_file)
        ):
            raise run.another_run(
                f"another vocabulary than {path}", "leave --vocab_file out to evaluate with the run's own"
            )
        casing.agreed(begun.tokenizer.do_lower_case, config.tokenizer.do_lower_case, run.path)
    return config


def refuse_overridden(config: Config, keys: Iterable[str]) -> None:
    """Raises ValueError if one of `keys`, set by flags or --set, has no effect because another setting overrides it."""
    for unread, counts in OVERRIDDEN_BY:
        value, counting_value = (
            getattr(getattr(config, section), name) for section, name in (key.split(".") for key in (unread, counts))
        )
        if unread in keys:
            refuse_unused(f"config.{unread}", value, 0, f"config.{counts} 0 (not {counting_value})", not counting_value)


def require_vocabulary(config: Config, init_checkpoint: str, begins: bool = False, output_dir: str = "") -> None:
    """Raises ValueError if no vocabulary is given. Without a checkpoint, the message asks a run that `begins` for a
    checkpoint, which would have a vocabulary, and any other for a run in `output_dir`.
    """
    if config.tokenizer.vocab_file:
        return
    if begins and not init_checkpoint:
        raise ValueError(
            "--init_checkpoint: expected the pretrained BERT, a path or a name of a hub such as "
            "google-bert/bert-base-uncased; --vocab_file alone gives random weights"
        )
    if output_dir and not init_checkpoint:
        raise not_a_run(f"--output_dir={output_dir}", f"{WITHOUT_WEIGHTS}, and no --init_checkpoint given")
    raise ValueError(f"--vocab_file: expected the vocabulary of the checkpoint (there is no {VOCAB_FILE} beside it)")
