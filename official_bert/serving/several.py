"""Writes several tasks on one encoder as one SavedModel per form: the encoder's weights once, a signature for each
task.

The served models of all tasks have the same encoder weights. Each has adapters and a head of its own.
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from official_bert.config import Config
from official_bert.runtimes.saved_tasks import FOLDER
from official_bert.serving.export import (
    FORMS,
    ExportOptions,
    checked_answers,
    form_of,
    new_version,
    published,
    sample_requests,
    save,
    write_assets,
    write_padded,
)
from official_bert.serving.precision import weights_in
from official_bert.serving.served_layers import Values
from official_bert.serving.served_model import ServedModel
from official_bert.text import loading
from official_bert.text.graph_loading import AnyGraphTokenizer


@dataclasses.dataclass
class _SavedModel:
    """The contents of a form's SavedModel, collected before it is written to a folder."""

    form: str
    folder: pathlib.Path
    signatures: dict[str, Any] = dataclasses.field(default_factory=dict)
    requests: list[tuple[str, Mapping[str, Any]]] = dataclasses.field(default_factory=list)
    tokenizers: dict[bool, AnyGraphTokenizer] = dataclasses.field(default_factory=dict)  # by whether they lower-case

    def add(self, name: str, served: ServedModel, assets: pathlib.Path, options: ExportOptions) -> None:
        """Traces the answer of a task and copies the files that describe it."""
        inputs, answer = form_of(served, self.form)
        function = tf.function(checked_answers(answer, {})["serving_default"], autograph=False)
        self.signatures[name] = function.get_concrete_function(**inputs)
        self.requests += [(name, sample) for sample in sample_requests(served, inputs, options)]
        own = self.folder.with_suffix(".tasks") / name
        shutil.copytree(assets, own, ignore=shutil.ignore_patterns(loading.stored_name(served.tokenizer.vocab_file)))
        if padded := served.padded_text if self.form == "text" else served.padded_ids:
            write_padded(padded, inputs, own)

    def write(self, vocabulary: pathlib.Path, variables: list[tf.Variable], options: ExportOptions) -> str:
        """Writes the SavedModel; returns a line about it."""
        tokenizers = list(self.tokenizers.values()) if self.form == "text" else []
        about = save(
            str(self.folder), self.signatures, variables, tokenizers, [str(vocabulary)], self.requests, options
        )
        (self.folder / FOLDER).parent.mkdir(exist_ok=True)
        self.folder.with_suffix(".tasks").rename(self.folder / FOLDER)
        return f"a signature for each of {', '.join(self.signatures)}; {about}"


def export_tasks(tasks: Mapping[str, Callable[[], tuple[ServedModel, Config]]], options: ExportOptions) -> list[str]:
    """Writes the tasks, by their names, in both forms; returns a line about each form.

    Each task is made just before it is written. Raises ValueError for tasks of different vocabularies, and as
    `export.export` does.
    """
    _, targets = new_version(options, FORMS)
    values, vocabularies = Values(are_shared=True), list[pathlib.Path]()
    with published(options.output, targets) as temporary:
        models = [_SavedModel(form, pathlib.Path(temporary, form)) for form in FORMS]
        for name, make in tasks.items():
            served, config = make()
            file = pathlib.Path(temporary, "assets", name, loading.stored_name(served.tokenizer.vocab_file))
            write_assets(served, config, file.parent, options.precision)
            vocabularies.append(file)
            if file.name != vocabularies[0].name or file.read_bytes() != vocabularies[0].read_bytes():
                raise ValueError(
                    f"--adapters: expected one vocabulary, got another in {name} than in {vocabularies[0].parent.name}"
                )
            weights = weights_in(options.precision, served.model, values=values)
            for model in models:
                served.tokenizer = model.tokenizers.setdefault(config.tokenizer.do_lower_case, served.tokenizer)
                with weights.scope():
                    model.add(name, served, file.parent, options)
        return [f"{targets[model.form]}: {model.write(vocabularies[0], values.variables, options)}" for model in models]
