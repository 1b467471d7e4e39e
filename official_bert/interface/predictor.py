"""Answers many raw texts with a model that is loaded once: texts are batched by length, answers keep the order of the
texts.

A model is a training run's folder, a checkpoint of any format or an exported model, also for ONNX Runtime, LiteRT or
OpenVINO; all of them use the same graph, in which another runtime computes the rows of ids.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.config import Config, build
from official_bert.data.labelled.labelled_texts import described_names
from official_bert.data.tabular.frames import as_source, is_frame
from official_bert.interface.answer_frames import as_frame, named_probabilities
from official_bert.interface.keyword_errors import keyword_errors
from official_bert.interface.model_inputs import ModelInputs
from official_bert.models.checkpoints import merged_copy, trained_weights
from official_bert.models.encoder import BertEncoder, encoder_settings
from official_bert.run_folder import RunFolder
from official_bert.runs import evaluation
from official_bert.runtimes.engines import FILE, FORMS, load_engine
from official_bert.runtimes.finite import not_finite
from official_bert.runtimes.saved_notes import LABELS_FILE, PADDED_FILE
from official_bert.serving.bounds import broken_claim
from official_bert.serving.explanations import Explainer
from official_bert.serving.formats.description import as_model
from official_bert.serving.loading import (
    ModelFunction,
    exported_folder,
    function_of,
    load_exported,
)
from official_bert.serving.served_embeddings import ServedEmbeddings, make_served_model
from official_bert.serving.served_model import ServedModel, ServingOptions
from official_bert.serving.task_serving import serving_of
from official_bert.storage.files import exists, folder_of, list_versions, read_json, read_text
from official_bert.storage.stores import locate
from official_bert.tasks.answers import Measured
from official_bert.tasks.data import DataFiles
from official_bert.tasks.loading import (
    GLUE,
    check_named,
    dataset_name,
    load_task,
    restore_for_inference,
    restore_model,
    task_class,
)
from official_bert.tasks.task import TaskBase
from official_bert.training.machines.cluster import Placement
from official_bert.typed_values import did_you_mean

Row = Mapping[str, Any]
INPUT_ORDER = ("text", "text_pair", "question", "context", "choices")  # of columns; a SavedModel's inputs have no order
# Options of tasks that say how data are read or answers are written, and change nothing in a trained model.
READING_OPTIONS = (
    "file_format", "delimiter", "header", "encoding", "text_column", "text_pair_column", "begin_column",
    "choice_columns", "choices_column", "label_column", "label_columns", "label_separator", "keys_column",
    "answer_as", "first_choice", "negative_columns", "score_column", "word_column", "tag_column", "separator",
    "places", "overlaps", "empty_text", "missing_label", "unknown_ids", "score_range", "several_answers",
    "candidates", "passes", "block_size",
)  # fmt: skip
PUBLIC = (
    "config", "describe", "embed", "evaluate", "explain", "inputs", "labels", "outputs", "path", "prompts", "rank",
    "score",
)  # fmt: skip
OTHER_TASKS = ("embeddings", "fill_mask", *GLUE)
KEYWORDS = {name: name for name in (*ServingOptions.__annotations__, "do_lower_case", "task", "model")}  # by flags


class Predictor:
    """Answers raw texts with a trained or published model: `Predictor("runs/reviews")(["Good.", "Bad."])`.

    `inputs` are the names of the parts of a text (`text`; `text, text_pair`; `question, context`; `text, choices`),
    `outputs` the names in an answer, `labels` those of a classifier, `config` the configuration of its training (None:
    not known). `describe(row, answer)` formats an answer for a person, `unpadded(answer)` leaves out what fills it up.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        options: ServingOptions | None = None,
        vocab_file: str = "",
        do_lower_case: bool | None = None,
        base: str | os.PathLike = "",
        task: str = "",
        **choices: Any,
    ):
        """Loads a training run's folder, a checkpoint of any format, or an exported model.

        A checkpoint without a head answers with embeddings. `choices` are fields of `ServingOptions` (`top_k=3`,
        `head="embeddings"`). `vocab_file` and `do_lower_case` are for checkpoints whose files do not have them, `base`
        is the model that a PEFT folder is an adapter for. `task` is what the model shall do: a task's name, a data set
        of GLUE, `fill_mask` or `embeddings`, for which a head is left out.

        Raises ValueError if there is no model, if it is for another task, or for an option that the model does not use.
        """
        # The commands, which name flags, give all options at once.
        with keyword_errors(**KEYWORDS) if options is None else contextlib.nullcontext():
            classes = served_classes(task, "--task") if task else ()
            merged = merged_copy(os.fspath(path), os.fspath(base))
            chosen = _chosen(options or ServingOptions(), choices)
            if task == "embeddings" and not (portable_folder(merged) or exported_folder(merged)):
                chosen = dataclasses.replace(chosen, head="embeddings")
            self._load(merged, chosen, vocab_file, do_lower_case)
            if classes and not class_that_gives(self.outputs, classes):
                raise ValueError(f"--model={path}: not a model for --task={task}; it gives {sorted(self.outputs)}")

    def __repr__(self) -> str:
        task = self.config.task if self.config else "a model of another program"
        labels = f", labels {described_names(self.labels)}" if self.labels else ""
        return f"<Predictor of {self.path}: {task}{labels}; {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"

    def __dir__(self) -> list[str]:
        return [*PUBLIC]

    def _load(self, path: str, options: ServingOptions, vocab_file: str, do_lower_case: bool | None) -> None:
        """Loads the model."""
        portable = None if exported_folder(path) else portable_folder(path)
        if portable or exported_folder(path):
            as_exported = f"{path}, an exported model, whose options are fixed"
            options.read(() if portable else ("signature",), as_exported)
            if options.max_seq_length:
                raise ValueError(f"--max_seq_length: expected a run or a checkpoint with it, got {as_exported}")
            if vocab_file or do_lower_case is not None:
                raise ValueError(f"--vocab_file, --do_lower_case: {path} is an exported model, which has its own")
            self._model = _load_portable(portable) if portable else load_exported(path, task=options.signature or "")
            self.config, task, kind = _exported(self._model.assets, self._model.outputs)
            self.labels = tuple(task.answers.classes.labels) if task else kind.labels
            if options.head == "embeddings" and ServedEmbeddings.outputs[0] not in self._model.outputs:
                raise ValueError(f"--head=embeddings: expected a model exported with it, got {as_exported}")
        else:
            task, model = restore_for_inference(path, vocab_file, do_lower_case)
            self.config, self.labels = task.config, tuple(task.answers.classes.labels)
            if isinstance(model, BertEncoder):
                options = dataclasses.replace(options, head="embeddings")
            served = make_served_model(task, model, dataclasses.replace(options, bounded=False))
            self._model, kind = function_of(served), type(served)
        if unknown := sorted(set(self._model.inputs) - set(INPUT_ORDER)):
            raise ValueError(
                f"{path}: expected a model that takes text (models/NAME, or models/NAME/text/VERSION), got one of "
                f"{unknown}"
            )
        self.describe, self.unpadded, self.lacks_question = kind.describe, kind.unpadded, kind.lacks_question
        self.path = path
        self.inputs = tuple(sorted(self._model.inputs, key=INPUT_ORDER.index))
        self._rows = ModelInputs(self.inputs, task.answers.input_columns() if task else {})
        others = sorted(set(self._model.outputs) - set(kind.outputs))  # a SavedModel's outputs have no order either
        self.outputs = (*(name for name in kind.outputs if name in self._model.outputs), *others)

    def __call__(self, texts: Any, batch_size: int = 32) -> Any:
        """Returns the answers to a list of texts in order, as dicts of plain Python values; for a single text, the
        answer itself.

        A text is a string, or with several inputs a tuple of them in the order of `inputs`, or a dict by their names:
        `("Who wrote it?", "It was written by Ada.")`, `{"text": "She sat", "choices": ["down.", "blue."]}`. Dicts and
        pandas frames may have the columns of the run's training instead (`review`); to a frame or a series the answer
        is a frame with its index. Answers hold no padding, and probabilities of labels by name.

        Raises ValueError, naming the row from 1, for anything else.
        """
        if self._rows.is_single(texts):
            return self([texts], batch_size)[0]
        rows, index = self._rows.read_texts(texts)
        arrays = self.answer(rows, batch_size)
        warn_of_empty(
            [reason for row, answer in zip(rows, arrays) if (reason := self.lacks_question(row, answer))], len(rows)
        )
        answers = [named_probabilities(self.unpadded(answer), self.labels) for answer in arrays]
        return answers if index is None else as_frame(answers, index)

    def explain(self, texts: Any, steps: int = 50, of: str = "") -> Any:
        """Returns what each word adds to the logit of the answer to each text, or of `of`; for one text, one dict.

        Integrated gradients at `steps` points (`Explainer.explain`; docs/explain.md).

        Raises ValueError for an exported model, for one that gives vectors or writes, and for an `of` that is not
        there.
        """
        if self._rows.is_single(texts):
            return self.explain([texts], steps, of)[0]
        rows, explainer = self._rows.read_texts(texts)[0], self.explainer
        return explainer.explain_all(rows, self.answer(rows), steps, of)

    @functools.cached_property
    def explainer(self) -> Explainer:
        """Returns what explains answers that are known already. Raises ValueError as `explain` does."""
        return Explainer(self._model.owner, self.path)

    def evaluate(self, data: Any, **options: Any) -> dict[str, float]:
        """Measures the answers to labelled data, in any form that `fine_tune` takes for `eval`, by the metrics of the
        task; scores are from 0 to 1. Writes nothing. `options` say how the data are read, if otherwise than in
        training: `encoding="cp1252"`.

        Raises ValueError for an exported model, for data that the task cannot read, and for options that are not for
        reading.
        """
        return evaluate(self.path, data, options, self.config).metrics

    def rank(self, query: str, texts: Iterable[str], batch_size: int = 32) -> list[dict[str, Any]]:
        """Returns `index`, `score` and `text` of each text, the best answer to the query first; equal scores keep their
        order.

        Scores are those of a reranker, or of a published cross-encoder (`Predictor(path, pairs=True)`), or cosines of
        embeddings.

        Raises ValueError for a model that gives neither, and for something else than texts.
        """
        if isinstance(texts, str):
            raise ValueError(f"expected a list of texts, got one text, {texts!r:.60}")
        if is_frame(texts):
            raise ValueError("texts: expected a list or a column of texts, as in frame['text'], got a frame")
        listed = list(texts)
        if "embedding" in self.outputs:
            scores = (self.embed(listed, "passage", batch_size) @ self.embed([query], "query")[0]).tolist()
        elif "score" in self.outputs and self.inputs == ("text", "text_pair"):
            scores = [answer["score"] for answer in self([(query, text) for text in listed], batch_size)]
        else:
            raise ValueError(
                "expected a model that scores two texts (a published one with pairs=True) or gives embeddings, got "
                f"one that takes {' and '.join(self.inputs)} and gives {', '.join(self.outputs)}"
            )
        order = sorted(range(len(listed)), key=lambda index: -scores[index])
        return [{"index": index, "score": scores[index], "text": listed[index]} for index in order]

    def score(self, texts: Any, by: str = "word_l2r", batch_size: int = 32, first: int = 1) -> Any:
        """Returns how probable a masked LM finds each text, in natural logarithms: `score`, a sum, with `token_scores`
        of its `tokens`, `word_scores` of its `words`, and the number of `unknown` tokens; for one text, the answer
        itself.

        `by` is "word_l2r" (a token without itself and the later pieces of its word), "token" (without itself) or
        "bound" (minus the bound of masked diffusion); docs/generation.md has their sources. Errors count rows from
        `first`.

        Raises ValueError for a model without a masked-LM head, an exported one, another `by`, and for texts that are
        longer than a row or have a [MASK].
        """
        if isinstance(texts, str):
            return self.score([texts], by, batch_size)[0]
        return self._scorer.score([row["text"] for row in self._rows.read_texts(texts)[0]], by, batch_size, first)

    @functools.cached_property
    def _scorer(self) -> Any:
        """What scores texts. Raises ValueError for a model that cannot."""
        if not (scorer := getattr(self._model.owner, "scorer", None)):
            raise ValueError(
                f"score: expected a run or a checkpoint with a masked-LM head, got {self.path}, which gives "
                f"{', '.join(self.outputs)}"
            )
        return scorer()

    @property
    def prompts(self) -> dict[str, str]:
        """What a retrieval model was trained to read before texts: of a `query`, of a `passage` ("" for others), and
        before those of further names.
        """
        options = self.config.options if self.config and self.config.task in ("retrieval", "splade") else {}
        sides = {side: options.get(f"{side}_prompt", "") for side in ("query", "passage")}
        return {**options.get("more_prompts", {}), **sides}

    def embed(self, texts: Any, prompt: str = "", batch_size: int = 32, out: np.ndarray | None = None) -> np.ndarray:
        """Returns the vectors of texts, float32 [N,D], of length 1; `prompt` is a name in `prompts`, or `document` for
        `passage`. They are written to `out` [N,D].

        Raises ValueError for a model without embeddings, and for another prompt.
        """
        if "embedding" not in self.outputs:
            raise ValueError(f"expected a model that gives embeddings, got one that gives {', '.join(self.outputs)}")
        prompt = "passage" if prompt == "document" else prompt  # sentence-transformers' name
        if prompt and prompt not in self.prompts:
            raise ValueError(f"prompt: expected one of {', '.join(self.prompts)}, got {prompt!r}")
        self.require_float_vectors("expected float32 vectors")
        rows, _ = self._rows.read_texts(texts)
        model = self._model.after(prompt) if prompt in self._model.prompted else self._model
        # of a model that was exported without its prompts
        if model is self._model and (front := self.prompts.get(prompt, "")):
            rows = [{**row, "text": front + row["text"]} for row in rows]
        vectors = out
        for numbers in self._batches(rows, batch_size):
            part = np.asarray(self._outputs(rows, numbers, model)["embedding"], np.float32)
            vectors = np.zeros((len(rows), part.shape[-1]), np.float32) if vectors is None else vectors
            vectors[numbers] = part / np.maximum(np.linalg.norm(part, axis=-1, keepdims=True), 1e-12)
        return np.zeros((0, 0), np.float32) if vectors is None else vectors

    def require_float_vectors(self, expected: str) -> None:
        """Raises ValueError, with what is `expected`, for an exported model whose vectors are codes of fewer bits."""
        if not (dtype := self._model.outputs["embedding"].dtype).is_floating:
            raise ValueError(
                f"{expected} from {self.path}, got packed ones ({dtype.name}; run_export --vectors), whose codes "
                "`Predictor(texts)` and run_predict with JSON lines give"
            )

    def answer(self, rows: Sequence[Row], batch_size: int = 32) -> list[dict[str, Any]]:
        """Returns the outputs by name for each row of inputs, in order, as the exported model gives them.

        Raises ValueError, with the row's number, if a row lacks an input or its answer is not finite, and with the
        limit of an exported model that a row exceeds.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        for number, row in enumerate(rows, 1):
            if missing := [name for name in self.inputs if name not in row]:
                raise ValueError(
                    f"row {number}: expected {' and '.join(self.inputs)}, {' and '.join(missing)} is missing"
                )
        answers: list[dict[str, Any]] = [{} for _ in rows]
        for numbers in self._batches(rows, batch_size):
            outputs = self._outputs(rows, numbers)
            for place, index in enumerate(numbers):
                answers[index] = {name: plain(outputs[name][place]) for name in self.outputs}
        return answers

    def _outputs(
        self, rows: Sequence[Row], numbers: Sequence[int], model: ModelFunction | None = None
    ) -> dict[str, Any]:
        """Returns the outputs for the rows of these numbers, those of another `model` than the default one if it is
        given.

        Raises ValueError, naming the row, for an answer that is not finite.
        """
        try:
            outputs = (model or self._model)(
                **{name: [rows[number][name] for number in numbers] for name in self.inputs}
            )
        except tf.errors.InvalidArgumentError as error:
            if (claim := broken_claim(error)) is None:
                raise
            raise ValueError(f"{self._model.place}: {claim}") from None
        if found := not_finite(outputs):
            place, name = found
            raise ValueError(
                f"row {numbers[place] + 1}: the answer of {self._model.place} is not finite: {name} has NaN or infinity"
            )
        return outputs

    def _batches(self, rows: Sequence[Row], batch_size: int) -> Iterator[list[int]]:
        """Gives batches of row numbers: rows of similar length and, if there are choices, with equally many of them."""
        choices = [len(row["choices"]) if "choices" in self.inputs else 0 for row in rows]
        lengths = [sum(len(str(row[name])) for name in self.inputs) for row in rows]
        order = sorted(range(len(rows)), key=lambda index: (choices[index], lengths[index]))
        for _, group in itertools.groupby(order, key=lambda index: choices[index]):
            alike = list(group)
            yield from (alike[start : start + batch_size] for start in range(0, len(alike), batch_size))


@keyword_errors(eval_file="data")
def evaluate(path: str, data: Any, options: Mapping[str, Any], config: Config | None = None) -> Measured:
    """Measures a run with the weights that answer, or a checkpoint, on labelled data; writes nothing.

    `data` have any form that `fine_tune` takes for `eval`, or are all files of a run. `options` replace those of the
    task that say how files are read; `config` is that of the model, if it is known. Raises ValueError for an exported
    model, for data that the task cannot read, and for other options.
    """
    files = data if isinstance(data, DataFiles) else DataFiles(eval_file=as_source(data, "data"))
    if exported_folder(path) or portable_folder(path):
        raise ValueError(
            f"{path}: an exported model has no task to evaluate; evaluate the run that it was exported from"
        )
    folder = RunFolder(path)
    run = folder.best_of_search or folder
    task = load_task(config or restore_model(path)[0], run.path if run.has_begun else "")
    if options:
        task = _with_reading_options(task, options)
    weights = trained_weights(run, best=task.config.training.answer_with == "best") if run.has_begun else path
    return evaluation.measure(task, files, "", Placement(), weights, lambda _: None)


def _with_reading_options(task: TaskBase, options: Mapping[str, Any]) -> TaskBase:
    """Returns a task that reads files with other options. Raises ValueError for options that are not for reading."""
    known = [name for name in READING_OPTIONS if hasattr(task.options, name)]
    if unknown := sorted({*options} - {*known}):
        near = did_you_mean(unknown[0], known)
        raise ValueError(f"{unknown[0]}: expected an option for reading data ({', '.join(known)}); {near}".rstrip("; "))
    return dataclasses.replace(
        task, config=dataclasses.replace(task.config, options={**task.config.options, **options})
    )


def warn_of_empty(reasons: Sequence[str], count: int) -> None:
    """Says how many of `count` answers are empty because their texts ask for nothing, and why the first is
    (`lacks_question`).
    """
    if reasons:
        logging.warning("%d of %d answers are empty: %s", len(reasons), count, reasons[0])


def _chosen(options: ServingOptions, choices: Mapping[str, Any]) -> ServingOptions:
    """Returns the options with these fields replaced; raises ValueError for an unknown name."""
    fields = [field.name for field in dataclasses.fields(options)]
    if unknown := [name for name in choices if name not in fields]:
        near = did_you_mean(unknown[0], KEYWORDS)
        raise ValueError(f"{unknown[0]}: expected one of {', '.join(fields)}; {near}".rstrip("; "))
    return build(ServingOptions, {**vars(options), **choices}, "options")


def portable_folder(path: str) -> str | None:
    """Returns the folder of a model of another runtime that a path means; None if there is none, and for a training
    run's folder.

    The path is a version's folder, a file in it, models/NAME/onnx, or models/NAME if that has no SavedModel: then the
    first format of `FORMS` that is there.
    """
    if exists(os.path.join(path, FILE)):
        return path
    if path.endswith((".onnx", ".tflite", ".xml")) and exists(os.path.join(folder_of(path), FILE)):
        return folder_of(path)
    if RunFolder(path).has_begun:  # it may have gone on since its model was exported
        return None
    for folder in (path, *(os.path.join(path, form) for form in FORMS)):
        if versions := list_versions(folder, [FILE]):
            return os.path.join(folder, versions[max(versions)])
    return None


def _load_portable(folder: str) -> ModelFunction:
    """Loads a model of another runtime as a function of texts: TensorFlow prepares the rows of ids and finishes the
    answers.

    Raises ValueError if its runtime is not installed, or if its files cannot be read.
    """
    folder_here = locate(folder).fetch()
    engine, described = load_engine(folder_here, 0, folder)
    assets = RunFolder(os.path.join(folder_here, "assets"))
    task = load_task(assets.require_config(), assets.path)
    stand_in = types.SimpleNamespace(encoder=types.SimpleNamespace(settings=encoder_settings(task.config.model)))
    try:
        options = ServingOptions(**described["options"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{os.path.join(folder, FILE)}: options: {error}") from None
    served = make_served_model(task, stand_in, options)
    served.engine = as_model(engine, described)
    model = function_of(served)
    model.place, model.assets = folder, os.path.join(folder, "assets")
    return model


def served_classes(task: str, where: str = "config.task") -> tuple[type[ServedModel], ...]:
    """Returns the served-model classes of a task's name, or one of `OTHER_TASKS`: `fill_mask` is pre-training's.

    Raises ValueError for an unknown name.
    """
    if task == "embeddings":
        return (ServedEmbeddings,)
    name = "pretraining" if task == "fill_mask" else "glue" if dataset_name(task) else task
    return serving_of(task_class(name, where, OTHER_TASKS), name).classes


def class_that_gives(outputs: Iterable[str], classes: Iterable[type[ServedModel]]) -> type[ServedModel] | None:
    """Returns the first class whose outputs are all among `outputs`, or None."""
    return next((kind for kind in classes if set(kind.outputs) <= set(outputs)), None)


def _exported(folder: str, outputs: Iterable[str]) -> tuple[Config | None, TaskBase | None, type[ServedModel]]:
    """Returns the configuration and the task of an exported model, as far as they are known here, and its class, by the
    files that describe it.

    A model that was exported by other code, or by a user's task that is not on the path, can answer nevertheless: files
    beside it name its labels and its padded outputs.
    """
    assets = RunFolder(folder)
    config, task, kind = None, None, _unknown_class(assets)
    with contextlib.suppress(ValueError):
        config = assets.recorded_config()
        check_named(config.task, assets.path)
        kind = class_that_gives(outputs, (*served_classes(config.task), ServedEmbeddings)) or kind
        task = load_task(config, assets.path)
    return config, task, kind


def _unknown_class(assets: RunFolder) -> type[ServedModel]:
    """Returns a class of served models that knows what the files of an exported model say of its answers."""
    padded = read_json(assets.file(PADDED_FILE), missing={}).get("serving_default", {})
    labels = read_text(assets.file(LABELS_FILE)).splitlines() if exists(assets.file(LABELS_FILE)) else ()
    return type(
        "ExportedModel",
        (ServedModel,),
        {
            "labels": tuple(labels),
            "padded_text": {name: how["counted_by"] for name, how in padded.items() if "counted_by" in how},
        },
    )


def plain(value: Any) -> Any:
    """Converts a NumPy value to JSON's types, with decoded strings."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
