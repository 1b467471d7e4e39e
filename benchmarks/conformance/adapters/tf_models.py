"""tf-models-official: its own tools read 2018's checkpoint, text and features."""

import subprocess
import sys
import types

PACKAGES, ENVIRONMENT, INSTALL = ("tf-models-official", "tf-keras"), ".venv", "make install"


def tokens(given, kind):
    from official.nlp.tools.tokenization import FullTokenizer

    tokenizer = FullTokenizer(given.vocabulary(kind), do_lower_case=kind != "cased")
    return [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in given.texts(kind)]


def pairs(given):
    from official.nlp.data.classifier_data_lib import InputExample, convert_single_example
    from official.nlp.tools.tokenization import FullTokenizer

    tokenizer, rows = FullTokenizer(given.vocabulary(), do_lower_case=True), []
    for a, b in given.values["pairs"]:
        example = InputExample("", a, b, label="x")
        row = convert_single_example(9, example, ["x"], given.values["max_seq_length"], tokenizer)
        rows.append([part[: sum(row.input_mask)] for part in (row.input_ids, row.segment_ids)])
    return rows


def squad(given):
    from official.nlp.data import squad_lib
    from official.nlp.tools.tokenization import FullTokenizer

    asked, features = given.squad(), []
    examples = squad_lib.read_squad_examples(asked["file"], False, False)
    lengths = [asked[name] for name in ("max_seq_length", "doc_stride", "max_query_length")]
    tokenizer = FullTokenizer(given.vocabulary(), do_lower_case=True)
    keep = {"is_training": False, "output_fn": lambda row, **_: features.append(row), "batch_size": 1}
    squad_lib.convert_examples_to_features(examples, tokenizer, *lengths, **keep)
    results = [types.SimpleNamespace(**row) for row in asked["results"]]
    limits = asked["n_best_size"], asked["max_answer_length"]
    return dict(squad_lib.postprocess_output(examples, features, results, *limits, do_lower_case=True)[0])


def _tool(name, **flags):
    command = [sys.executable, "-m", f"official.nlp.{name}", *(f"--{key}={value}" for key, value in flags.items())]
    subprocess.run(command, check=True, capture_output=True)


def instances(given):
    flags, records = given.values["instances"], str(given.folder / "tf_models.tfrecord")
    _tool("data.create_pretraining_data", output_file=records, vocab_file=given.vocabulary(), **flags)
    return records
