"""Converts a checkpoint to another format, and checks that both models compute the same.

    python tools/convert_checkpoint.py --from=tf1 --to=hugging_face \\
        --input=uncased_L-12_H-768_A-12/bert_model.ckpt --output=bert_for_pytorch

A run that detects replaced tokens (ELECTRA) becomes two folders: --output, the discriminator, and in it `generator`.

The result is loaded again (a preset by keras-hub itself), and both models run on the same random input. The output
folder appears only if the largest difference is at most 1e-5; otherwise the command fails and leaves nothing behind.
"""

from official_bert.command_line import define_base, from_flags, run_main

import dataclasses
import os
import re
import types
from typing import TYPE_CHECKING, Literal

import numpy as np
from absl import flags

from official_bert.config import ModelConfig, build, read_bert_config
from official_bert.model_config import OF_2018
from official_bert.storage.files import require_new_folder, written_folder

if TYPE_CHECKING:
    import keras

    from official_bert.models.interchange.stored_models import StoredModel

FORMATS = ("tf1", "hugging_face", "keras_hub", "tf_models", "ours", "peft")
# Options of runs that no format has a place for: how texts are read, and which answer is given.
CHANGE_ANSWERS = (
    "max_seq_length",
    "truncate",
    "doc_stride",
    "document_context",
    "max_query_length",
    "max_answer_length",
    "n_best_size",
    "version_2_with_negative",
    "null_score_diff_threshold",
    "scheme",
    "constrain",
)
LARGEST = 1e-5  # difference between the outputs of the two models
FLAGS = flags.FLAGS
flags.DEFINE_enum("from", "", ["", *FORMATS], "The format of --input; by default detected from the files.")
flags.DEFINE_enum(
    "to", None, [name for name in FORMATS if name != "tf_models"], "The format of --output.", required=True
)
flags.DEFINE_string("input", None, "A checkpoint's prefix, a folder or a .keras file.", required=True)
flags.DEFINE_string("output", None, "A new folder.", required=True)
flags.DEFINE_string("bert_config_file", "", "bert_config.json, if it is not beside --input.")
flags.DEFINE_string("vocab_file", "", "The vocabulary, if it is not beside --input.")
flags.DEFINE_bool(
    "do_lower_case", None, "Whether the vocabulary is lower-cased; by default detected from the files or the entries."
)
flags.DEFINE_enum(
    "head",
    "",
    ["", "classifier", "choice", "tagger", "pretraining"],
    "The kind of the output layer of --input, if its format does not say (tf1: classifier); pretraining: the "
    "generator of the two models of an ELECTRA in TF 1.",
)
flags.DEFINE_enum(
    "hidden_act",
    "",
    ["", "gelu", "gelu_erf"],
    "Overrides the files: Google's models were trained with gelu, but Hugging Face's copies say gelu_erf.",
)
flags.DEFINE_list(
    "labels", [], "Names of the classes of --input, in the order of its outputs, instead of those in its files."
)
flags.DEFINE_string(
    "leave_out", "", "A regular expression: weights of --input whose whole name matches are not converted."
)
flags.DEFINE_alias("drop", "leave_out")
define_base("input")
flags.DEFINE_bool("merge_adapters", False, "Merge the adapters of --input into their base, and write the merged model.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a conversion: the flags of these names."""

    to: str
    input: str
    output: str
    bert_config_file: str
    vocab_file: str
    do_lower_case: bool | None
    head: str
    hidden_act: Literal["", "gelu", "gelu_erf"]
    labels: list[str]
    leave_out: str
    base: str
    merge_adapters: bool


def read_source(formats: types.ModuleType, settings: Settings, expected: str) -> "StoredModel":
    """Returns the model to convert, changed as the settings say.

    Raises ValueError if it is not of the format `expected`.
    """
    from official_bert.models.interchange import casing, stored_models

    name, _ = formats.find_format(settings.input)
    name = "ours" if name == "keras" else name
    if expected not in ("", name):
        raise ValueError(f"--input={settings.input}: expected the format {expected}, got {name}")
    model = leave_out(formats.read(settings.input, settings.head, settings.base), settings.leave_out)
    check_adapters(model, settings)
    if settings.bert_config_file or settings.hidden_act:
        # how the files' own was taken
        model = dataclasses.replace(model, notes=[note for note in model.notes if "gelu" not in note])
    if settings.bert_config_file:
        fields = dataclasses.asdict(model.config) if model.config else {}  # of which the JSON has no place for some
        fields = {key: value for key, value in fields.items() if key not in OF_2018}
        values = build(ModelConfig, fields | read_bert_config(settings.bert_config_file), settings.bert_config_file)
        model = dataclasses.replace(model, config=values)
    if settings.hidden_act:
        model = dataclasses.replace(
            model, config=dataclasses.replace(stored_models.require_config(model), hidden_act=settings.hidden_act)
        )
    model = casing.with_vocabulary(model, settings.vocab_file)
    if settings.head == "pretraining" and model.head != "pretraining":
        raise ValueError(
            f"--head=pretraining: expected an ELECTRA of TF 1, or a model with the masked-LM head, got {model.origin}"
        )
    if settings.head in ("classifier", "choice", "tagger"):
        model = formats.as_head(model, settings.head)
    if settings.labels:
        model = with_labels(model, settings.labels)
    return dataclasses.replace(
        model, do_lower_case=casing.agreed(casing.is_lower_case(model), settings.do_lower_case, model.origin)
    )


def check_adapters(model: "StoredModel", settings: Settings) -> None:
    """Raises ValueError for adapters that --to cannot hold, and for --merge_adapters without effect."""
    alone = settings.to == "peft"
    if settings.merge_adapters and (alone or not model.adapters):
        reader, found = ("another format", "--to=peft") if alone else ("adapters", model.origin)
        raise ValueError(f"--merge_adapters: expected {reader} with it, got {found}; it has no effect")
    if model.adapters and not (alone or settings.merge_adapters):
        raise ValueError(
            f"--to={settings.to}: {settings.input} has adapters for a base: --merge_adapters writes the "
            "merged model, --to=peft the adapters"
        )


def with_labels(model: "StoredModel", labels: list[str]) -> "StoredModel":
    """Returns the model with these names of its classes. Raises ValueError for another number of names."""
    classes = len(model.weights.get(f"{model.head}/output_bias", ())) if model.head in ("classifier", "tagger") else 0
    if len(set(labels)) != classes or len(labels) != classes or not all(labels):
        raise ValueError(
            f"--labels: expected {classes} different names, one for each class of {model.origin}, got "
            f"{', '.join(labels)}"
        )
    return dataclasses.replace(model, labels=labels)


def leave_out(model: "StoredModel", names: str) -> "StoredModel":
    """Returns the model without the weights that --leave_out matches, by their names in the file or here."""
    if not names:
        return model
    try:
        pattern = re.compile(names)
    except re.error as error:
        raise ValueError(f"--leave_out={names}: not a regular expression: {error}") from None
    weights = {
        name: weight
        for name, weight in model.weights.items()
        if not pattern.fullmatch(name) and not pattern.fullmatch(model.table.theirs(name) or name)
    }
    from official_bert.models import encoder

    head = model.head if any(not name.startswith(encoder.ENCODER_PREFIXES) for name in weights) else ""
    return dataclasses.replace(
        model,
        weights=weights,
        head=head,
        generator=model.generator if head == model.head else None,
        unknown=[name for name in model.unknown if not pattern.fullmatch(name)],
    )


def random_inputs(config: ModelConfig) -> dict[str, np.ndarray]:
    """Returns three rows of random tokens and segments, of different lengths."""
    rng, length = np.random.default_rng(0), min(32, config.longest_row)
    mask = (np.arange(length) < np.array([[length], [length // 2], [length - 1]])).astype(np.int32)
    return {
        "input_ids": rng.integers(0, config.vocab_size, mask.shape, np.int32) * mask,
        "input_mask": mask,
        "segment_ids": rng.integers(0, max(config.type_vocab_size, 1), mask.shape, np.int32) * mask,
        "masked_lm_positions": rng.integers(0, length // 2, (3, 4), np.int32),
    }


def computed(
    formats: types.ModuleType, stored: "StoredModel", name: str, folder: str, model: "keras.Model | None" = None
) -> dict[str, np.ndarray]:
    """Returns the outputs of a stored model for the random input. `model` is its Keras model if it exists already.

    For a preset, keras-hub computes the encoder's outputs.
    """
    from official_bert.models.interchange.stored_models import require_config

    inputs = random_inputs(require_config(stored))
    if stored.head == "decoder":
        inputs["target_ids"] = inputs["masked_lm_positions"]  # small numbers, which every vocabulary has
    outputs = formats.outputs(formats.make_model(stored) if model is None else model, inputs)
    if name == "keras_hub":
        outputs |= formats.module_of(name).outputs(folder, inputs)
    missing = {
        "pooled_output": "pooler/kernel",
        "mlm_logits": "masked_lm/output_bias",
        "nsp_logits": "next_sentence/output_bias",
    }
    return {key: value for key, value in outputs.items() if key not in missing or missing[key] in stored.weights}


def largest_differences(
    formats: types.ModuleType, source: "StoredModel", model: "keras.Model", settings: Settings, folder: str
) -> dict[str, float]:
    """Returns the largest difference of each output between the source, whose Keras model is `model`, and the model in
    `folder`.
    """
    base = settings.base or (source.adapters.base if source.adapters else "")
    written = formats.read(folder, base=base if settings.to == "peft" else "")
    if written.head != source.head:
        written = formats.as_head(written, source.head)
    name, place = formats.find_format(settings.input)
    before = computed(formats, source, name, place, model)
    after = computed(formats, written, settings.to, folder)
    if source.generator is not None:
        before |= {f"generator's {name}": value for name, value in computed(formats, source.generator, "", "").items()}
        after |= {f"generator's {name}": value for name, value in computed(formats, written.generator, "", "").items()}
    return {name: float(np.abs(before[name] - after[name]).max()) for name in before if name in after}


def options_of_run(source: "StoredModel", settings: Settings) -> dict[str, str | int | float]:
    """Returns the options by which the run at --input, if it is one, reads texts and chooses answers, if they differ
    from what readers assume.

    They include the options that an evaluation tuned for these weights.
    """
    from official_bert.models.interchange import formats
    from official_bert.models.interchange.projects import ours
    from official_bert.run_folder import RunFolder, tuned_for
    from official_bert.tasks.loading import MODULES, load_task

    run = RunFolder.holding(settings.input)
    config = run.recorded_config() if run else None
    if config is None or config.task not in MODULES or config.task == "pretraining":
        return {}
    prefix = formats.find_prefix(settings.input)
    task = load_task(config).answers.with_tuned(tuned_for(prefix) if prefix else {})
    defaults = {field.name: field.default for field in dataclasses.fields(task.options)}
    usual = {name: defaults[name] for name in CHANGE_ANSWERS if name in defaults}
    guessed = ours.config_of(source).options
    usual["max_seq_length"] = guessed["max_seq_length"]
    if settings.to == "ours" and "scheme" in usual:
        usual["scheme"] = guessed.get("scheme", usual["scheme"])  # of the labels; other programs take all tags for IOB
    changed = {key: value for key in usual if (value := getattr(task.options, key)) != usual[key]}
    if changed.get("truncate") != "windows" and "truncate" in usual:
        changed.pop("doc_stride", None)
    return changed | ({"pairs": "two texts a row (--pairs)"} if getattr(task.options, "pairs", False) else {})


def facts_without_place(formats: types.ModuleType, source: "StoredModel", settings: Settings) -> list[tuple[str, str]]:
    """Returns pairs (fact, value) about the model that the files of --output cannot hold, so that readers need them
    again.
    """
    facts = []
    if settings.to in ("tf1", "peft") and source.labels:
        facts.append(("names of classes", ", ".join(source.labels)))
    if settings.to in ("tf1", "peft") and source.kind == "multi_label":
        facts.append(("the kind of answer", "several labels (otherwise the model is assumed to give one label)"))
    if settings.to != "ours" and source.kind == "multi_label" and source.threshold not in (None, 0.5):
        facts.append(("the threshold of the labels", str(source.threshold)))
    if settings.to != "ours" and source.sentence_task == "sop":
        facts.append(("the sentence task", "sop (its head for sentences tells their order)"))
    if settings.to in ("tf1", "keras_hub") and source.pooling:
        facts.append(("the pooling of embeddings", f"--pooling={source.pooling}"))
    if options := options_of_run(source, settings):
        facts.append(
            (
                "options of the run that change its answers",
                ", ".join(f"{key}: {value}" for key, value in options.items()),
            )
        )
    if settings.to == "tf1" and source.do_lower_case is False and formats.read(settings.output).do_lower_case is None:
        facts.append(
            (
                "the casing",
                "not lower-cased; commands that read it need --nodo_lower_case, or a folder named ..._cased_...",
            )
        )
    return facts


def refuse_casing_of_name(source: "StoredModel", output: str) -> None:
    """Raises ValueError if the name of --output or the vocabulary would give readers of the TF 1 checkpoint the wrong
    casing.
    """
    from official_bert.models.interchange import casing

    lower_case = casing.of_folder(os.path.join(output, "bert_model.ckpt"), source.vocab)
    if None not in (lower_case, source.do_lower_case) and lower_case != source.do_lower_case:
        yes, no = ("", "not ") if lower_case else ("not ", "")
        raise ValueError(
            f"--output={output}: its name or the vocabulary says that text is {yes}lower-cased, and TF 1 files say it "
            f"nowhere else, but it is {no}lower-cased for {source.origin}"
        )


def describe_source(source: "StoredModel", settings: Settings) -> None:
    """Prints a line about the model that was read.

    Raises ValueError if it has no configuration, or if its vocabulary or casing does not fit.
    """
    from official_bert.models.interchange import stored_models

    print("; ".join([f"found: {source.origin}, {len(source.weights)} weights", *source.notes, *source.warnings]))
    stored_models.require_config(source)
    if spare := stored_models.check_vocabulary_rows(source, is_own=not settings.vocab_file):
        print(
            f"{source.origin}: {spare} spare rows of word embeddings are converted too, because its vocabulary has "
            f"fewer entries"
        )
    if settings.to == "tf1":
        refuse_casing_of_name(source, settings.output)


def write_checked(formats: types.ModuleType, source: "StoredModel", settings: Settings) -> tuple[list[str], float]:
    """Writes the model, loads it again and compares; returns the weights left out and the largest difference of the
    outputs.

    Raises ValueError, and writes nothing, if the models differ.
    """
    with written_folder(settings.output) as unchecked:
        model = formats.make_model(source)
        left_out = formats.write(source, settings.to, unchecked)
        differences = largest_differences(formats, source, model, settings, unchecked)
        for name, value in differences.items():
            print(f"largest difference of {name}: {value:.2e}")
        worst = max(differences.values())
        if not worst <= LARGEST:
            raise ValueError(
                f"--output={settings.output}: not written: the models differ by {worst:.2e}, more than {LARGEST}"
            )
    return left_out, worst


def main(_: list[str]) -> None:
    """Reads, checks and writes the model, loads it again and compares; only then the folder gets its name."""
    from official_bert.models.interchange import formats

    require_new_folder(FLAGS.output, "--output")
    settings = from_flags(Settings, FLAGS)
    source = read_source(formats, settings, FLAGS["from"].value or "")
    describe_source(source, settings)
    left_out, worst = write_checked(formats, source, settings)
    if left_out:
        print(f"not written, because the model's class in this format lacks them: {', '.join(left_out)}")
    for what, fact in facts_without_place(formats, source, settings):
        print(f"not written, because this format has no place for {what}: {fact}")
    if source.vocab is None:
        print("no vocabulary was found; --vocab_file names one")
    print(f"{FLAGS.output}: {len(source.weights) - len(left_out)} weights; largest difference {worst:.2e}")
    if source.generator is not None:
        print(f"{os.path.join(FLAGS.output, 'generator')}: its generator, {len(source.generator.weights)} weights")


if __name__ == "__main__":
    run_main(main)
