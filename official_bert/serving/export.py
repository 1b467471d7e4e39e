"""Writes a served model as two SavedModels: `text/VERSION`, and `ids/VERSION` with TensorFlow's own ops only. For other
runtimes, writes a file that computes rows of ids (`formats/`).

A version is written to a temporary folder and renamed, so that a server that watches the folder never reads an
incomplete one.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from official_bert.config import Config, save_config
from official_bert.fields import refuse_unused
from official_bert.run_folder import CONFIG_FILE
from official_bert.runtimes.saved_notes import ABOUT_FILE, LABELS_FILE, PADDED_FILE
from official_bert.runtimes.split_names import EXAMPLES, PARSE
from official_bert.serving import warmup
from official_bert.serving.bounds import in_groups, require, same_rows
from official_bert.serving.description import describe_model
from official_bert.serving.example_signature import parse_inputs
from official_bert.serving.formats.writing import (
    FORMATS,
    FormatOptions,
    PartlyRefusedError,
    RefusedError,
    check_choices,
    write_format,
)
from official_bert.serving.precision import Precision, Weights, constant_bytes, weights_in
from official_bert.serving.served_model import ServedModel
from official_bert.serving.split_signature import split_signatures
from official_bert.storage.files import (
    exists,
    full_disk_names,
    list_versions,
    made_folder,
    normal,
    publish,
    temporary_for,
)
from official_bert.text import loading
from official_bert.text.graph_loading import AnyGraphTokenizer

FORMS = ("text", "ids")
BATCHING_FILE = "batching_params.pbtxt"  # TF Serving's name for it
PRECISION_FILE = "precision.txt"
MOST_REQUEST_ROWS = 1024
MOST_CONSTANTS = 500_000_000  # bytes; TensorFlow keeps several copies of a graph while it loads
DEFAULT_CONSTANTS = 1_000_000, 100_000_000  # bytes: less gains nothing, more takes much memory unless a user wants it
# rows of the warm-up requests if nobody says otherwise; the largest is the most that runs at once
WARMED_SIZES = (1, 8, 32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The user's options for the place and the form of an export."""

    output: str  # models/NAME
    version: int = 0  # 0: one above the highest that is there
    # of the warm-up requests: what the server's batching allows; none: no warm-up
    batch_sizes: Sequence[int] = WARMED_SIZES
    num_choices: int = 4  # of a choice model's Examples and warm-up requests
    precision: Precision = "float32"  # the model was made in its `policy_of`
    constant_weights: bool | None = None  # those of layers, in saved_model.pb too; None: as `has_constants` says
    formats: Sequence[str] = ("saved_model",)
    other_formats: FormatOptions = dataclasses.field(default_factory=FormatOptions)


def export(served: ServedModel, config: Config, options: ExportOptions) -> list[str]:
    """Writes a model in all formats, or in none; returns a line about each (for SavedModels with the ops that are not
    TensorFlow's own).

    Formats that cannot hold the model, or that their runtime refuses, are left out: PartlyRefusedError names them after
    the others have been published. Raises ValueError for an existing version, too few choices, labels with line
    breaks, and a format whose answers differ from the SavedModel's; OSError for a folder that cannot be written.
    """
    check_choices(options.formats, options.other_formats, options.precision)
    refuse_unused(
        "--constant_weights",
        bool(options.constant_weights),
        False,
        "saved_model in --format",
        "saved_model" in options.formats,
    )
    if options.constant_weights and (size := constant_bytes(options.precision, served.model)) > MOST_CONSTANTS:
        raise ValueError(
            f"--constant_weights: expected layers of at most {MOST_CONSTANTS:,} bytes in a graph, got {size:,}; "
            "without the flag, weights are variables"
        )
    if (choices := served.longest.get("choices", options.num_choices)) < options.num_choices:
        raise ValueError(
            f"--max_choices: expected at least {options.num_choices}, which the signature of Examples has, got "
            f"{choices}"
        )
    forms = [form for name in options.formats for form in (FORMS if name == "saved_model" else (name,))]
    version, targets = new_version(options, forms)
    weights = weights_in(options.precision, served.model, has_constants(served, options))
    lines, refused = [], []
    with published(options.output, targets) as temporary:
        folder = os.path.join(temporary, "assets")
        assets = write_assets(served, config, pathlib.Path(folder), options.precision)
        for form in forms:
            place = os.path.join(temporary, form)
            try:
                about = (
                    _write(served, form, place, assets, weights, options)
                    if form in FORMS
                    else write_format(
                        served, config, form, place, folder, version=version, options=options.other_formats
                    )
                )
                lines.append(f"{targets[form]}: {about}")
            except RefusedError as error:
                refused.append(error)
                del targets[form]
        if refused and not targets:
            raise refused[0]
    if refused:
        raise PartlyRefusedError(f"{'; '.join(map(str, refused))}; written: {', '.join(targets.values())}")
    return lines


def new_version(options: ExportOptions, forms: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Returns the number of the version to write, and its folder in each form. Raises ValueError if it exists."""
    version = options.version or next_version(options.output)
    targets = {form: os.path.join(options.output, form, str(version)) for form in forms}
    # TF Serving reads 01 as 1 too.
    spelled = [
        os.path.join(options.output, form, name)
        for form in forms
        for number, name in list_versions(os.path.join(options.output, form)).items()
        if number == version
    ]
    if existing := [*spelled, *(path for path in targets.values() if exists(path))]:
        raise ValueError(f"{existing[0]}: version {version} exists; give --version a higher one")
    return version, targets


@contextlib.contextmanager
def published(output: str, targets: dict[str, str]) -> Iterator[str]:
    """Yields a temporary folder for one subfolder per form of a version; on exit, moves these to their targets."""
    with (
        made_folder(output),
        temporary_for(os.path.join(output, ".writing")) as temporary,
        full_disk_names(output, temporary),
    ):
        os.mkdir(temporary)
        yield temporary
        # the SavedModels last: a server looks for the others when it loads one
        for form, target in reversed(targets.items()):
            publish(os.path.join(temporary, form), target)


def has_constants(served: ServedModel, options: ExportOptions) -> bool:
    """Returns whether SavedModels get constant weights: the user's choice; by default, true in float32 for layers of a
    size for which that is faster.
    """
    if options.constant_weights is not None or "saved_model" not in options.formats:
        return bool(options.constant_weights)
    least, most = DEFAULT_CONSTANTS
    return options.precision == "float32" and least <= constant_bytes(options.precision, served.model) <= most


def next_version(output: str) -> int:
    """Returns the number above the highest version that `output` holds in any form."""
    return (
        max(
            (version for form in (*FORMS, *FORMATS) for version in list_versions(os.path.join(output, form))), default=0
        )
        + 1
    )


def write_assets(served: ServedModel, config: Config, folder: pathlib.Path, precision: Precision) -> list[str]:
    """Writes the files that travel with the model (vocabulary, labels, configuration, precision, a description) and
    returns their paths. Raises ValueError for labels with line breaks.
    """
    if wrong := [label for label in served.labels if not label or "\n" in label or "\r" in label]:
        raise ValueError(
            f"labels: expected names of one line, for labels.txt, got {wrong[0]!r}; options.labels, or "
            "tools/convert_checkpoint.py --labels, gives others"
        )
    folder.mkdir(parents=True)
    vocabulary = loading.stored_name(served.tokenizer.vocab_file)
    (folder / vocabulary).write_bytes(loading.content_of(served.tokenizer.vocab_file))
    save_config(
        dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, vocab_file=vocabulary)),
        str(folder / CONFIG_FILE),
        served.task_options,
    )
    (folder / PRECISION_FILE).write_text(f"{precision}\n", encoding="utf-8")
    (folder / ABOUT_FILE).write_text(json.dumps(describe_model(served, config)), encoding="utf-8")
    if served.labels:
        (folder / LABELS_FILE).write_text("".join(f"{label}\n" for label in served.labels), encoding="utf-8")
    return sorted(map(str, folder.iterdir()))


def _write(
    served: ServedModel, form: str, folder: str, assets: Sequence[str], weights: Weights, options: ExportOptions
) -> str:
    """Writes one SavedModel; returns its inputs, outputs and ops as a line."""
    inputs, answer = form_of(served, form)
    padded, more = (served.padded_text, served.more_signatures()) if form == "text" else (served.padded_ids, {})
    if padded:
        assets = [*assets, write_padded(padded, inputs, pathlib.Path(folder).with_name(f"padded-{form}"))]
    with weights.scope():
        served.group = functools.partial(in_groups, few=weights.few)
        answers = checked_answers(answer, more)
        signatures = make_signatures(inputs, answers, served.longest, options.num_choices, padded)
        del served.group
        if any(name in FORMATS for name in options.formats):
            # An engine computes rows; it has no gradients for an explanation.
            rows = {name: answers[name] for name in ("serving_default", *served.prompts) if name in answers}
            signatures |= split_signatures(served, rows, inputs)
    tokenizers = [served.tokenizer] if form == "text" else []
    samples = sample_requests(served, inputs, options)
    requests = [
        request
        for sample in samples
        for request in (("serving_default", sample), ("examples", {"inputs": warmup.to_examples(sample)}))
    ]
    about = save(folder, signatures, weights.variables, tokenizers, assets, requests, options)
    return f"{', '.join(inputs)} -> {', '.join(signatures['serving_default'].structured_outputs)}; {about}"


def sample_requests(
    served: ServedModel, inputs: Mapping[str, tf.TensorSpec], options: ExportOptions
) -> list[dict[str, Any]]:
    """Returns a plausible request of each of the batch sizes for a signature."""
    return [
        warmup.sample_inputs(inputs, size, options.num_choices, served.max_seq_length) for size in options.batch_sizes
    ]


def save(
    folder: str,
    signatures: Mapping[str, Any],
    variables: Sequence[tf.Variable],
    tokenizers: Sequence[AnyGraphTokenizer],
    assets: Sequence[str],
    requests: Sequence[tuple[str, Mapping[str, Any]]],
    options: ExportOptions,
) -> str:
    """Writes a SavedModel, its warm-up `requests` to signatures, and a server's batching parameters; returns a line
    with the number of requests and the ops that are not TensorFlow's own.
    """
    holder = tf.Module()
    # The variables and not the Keras model: loading then needs no Keras, and nothing of ours is traced a second time.
    holder.weights = list(variables)
    holder.tokenizer = [resource for tokenizer in tokenizers for resource in tokenizer.resources]
    holder.assets = [tf.saved_model.Asset(path) for path in assets]
    tf.saved_model.save(holder, folder, signatures=signatures)
    if requests:
        warmup.write_requests(folder, os.path.basename(normal(options.output)), requests)
    inputs = {
        name: spec
        for signature in signatures.values()
        for name, spec in signature.structured_input_signature[1].items()
    }
    if batches := batching_parameters(inputs, options.batch_sizes or WARMED_SIZES):
        pathlib.Path(folder, BATCHING_FILE).write_text(batches, encoding="utf-8")
    foreign = sorted({op for signature in signatures.values() for op in foreign_ops(signature)})
    precision = "" if options.precision == "float32" else f"{options.precision}; "
    return f"{precision}{len(requests)} warm-up requests; custom ops: {', '.join(foreign) or 'none'}"


def batching_parameters(inputs: Mapping[str, tf.TensorSpec], batch_sizes: Sequence[int]) -> str:
    """Returns the parameters by which TF Serving may batch a model (`--enable_per_model_batching_parameters`).

    Returns "" if TF Serving must not batch it: it pads rows of other lengths with a tensor's first value, so only
    inputs of one value per row may share a batch. Allowed batch sizes are not set, because TF Serving would fill
    batches up to them with useless rows.
    """
    if any(spec.shape.rank != 1 for spec in inputs.values()):
        return ""
    return "".join(
        [
            f"max_batch_size {{ value: {max(MOST_REQUEST_ROWS, *batch_sizes)} }}\n",
            "batch_timeout_micros { value: 2000 }\n",
            "max_enqueued_batches { value: 100 }\n",
            "enable_large_batch_splitting { value: true }\n",
            f"max_execution_batch_size {{ value: {max(batch_sizes)} }}\n",
        ]
    )


def form_of(served: ServedModel, form: str) -> tuple[Mapping[str, tf.TensorSpec], Callable]:
    """Returns the inputs and the function of one of the two SavedModels."""
    return (served.text_inputs, served.answer_text) if form == "text" else (served.ids_inputs, served.answer_ids)


def write_padded(padded: Mapping[str, str], inputs: Mapping[str, tf.TensorSpec], folder: pathlib.Path) -> str:
    """Writes `padded_outputs.json` and returns its path. For each signature it lists the padded outputs, with the
    output that counts a row's own values (`counted_by`) or the input of the same width (`as_wide_as`). For Examples, an
    output counts the values of the input.
    """
    by_name = {
        output: {"as_wide_as" if counter in inputs else "counted_by": counter} for output, counter in padded.items()
    }
    examples = {output: {"counted_by": _counter(counter, inputs)} for output, counter in padded.items()}
    folder.mkdir(exist_ok=True)
    path = folder / PADDED_FILE
    path.write_text(json.dumps({"serving_default": by_name, "examples": examples}, indent=1), encoding="utf-8")
    return str(path)


def _counter(counter: str, inputs: Mapping[str, tf.TensorSpec]) -> str:
    """Returns the name of the output that counts the values of an output or an input in the signature of Examples."""
    return f"num_{counter}" if counter in inputs else counter


def make_signatures(
    inputs: Mapping[str, tf.TensorSpec],
    answers: Mapping[str, Callable],
    longest: Mapping[str, int],
    num_choices: int,
    padded: Mapping[str, str] | None = None,
) -> dict:
    """Returns `serving_default` with named tensors, and `examples` with serialized `tf.train.Example`s under `inputs`.

    Each further answer, to texts with a prompt in front, gets a signature of its name.

    Examples of different lengths are padded, so `examples` also returns the lengths of those inputs whose width
    `padded` outputs have. The parsed Examples are a signature too, with which our server answers them without a second
    copy of the weights.
    """
    by_name = tf.function(answers["serving_default"], autograph=False).get_concrete_function(**inputs)
    counted = [name for name in (padded or {}).values() if name in inputs]

    @functools.partial(tf.function, input_signature=[tf.TensorSpec([None], tf.string, "inputs")], autograph=False)
    def by_example(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        tensors, lengths = parse_inputs(serialized, inputs, longest, num_choices)
        return by_name(**tensors) | {_counter(name, inputs): lengths[name] for name in counted}

    @functools.partial(tf.function, input_signature=[tf.TensorSpec([None], tf.string, "inputs")], autograph=False)
    def parse(serialized: tf.Tensor) -> dict[str, tf.Tensor]:
        tensors, lengths = parse_inputs(serialized, inputs, longest, num_choices)
        return tensors | {_counter(name, inputs): lengths[name] for name in counted}

    prompted = {
        name: tf.function(function, autograph=False).get_concrete_function(**inputs)
        for name, function in answers.items()
        if name != "serving_default"
    }
    return {
        **prompted,
        "serving_default": by_name,
        EXAMPLES: by_example.get_concrete_function(),
        PARSE: parse.get_concrete_function(),
    }


def checked_answers(answer: Callable, more: Mapping[str, Callable]) -> dict[str, Callable]:
    """Returns the functions of the named-tensor signatures, by name: `answer` and `more`, after a check that all inputs
    have the same number of rows.
    """
    return {
        name: lambda function=function, **tensors: function(require(same_rows(tensors), tensors))
        for name, function in {**more, "serving_default": answer}.items()  # our names of signatures win
    }


def foreign_ops(function: tf.types.experimental.ConcreteFunction) -> set[str]:
    """Returns the ops of a traced function that a server has only if it links tensorflow-text."""
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(node for inner in definition.library.function for node in inner.node_def)]
    return {node.op for node in nodes if not (node.op.startswith("_") or hasattr(tf.raw_ops, node.op))}
