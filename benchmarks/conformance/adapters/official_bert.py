"""official_bert."""

import subprocess
import sys

import numpy as np

from official_bert.text.tokenization import FullTokenizer

PACKAGES, ENVIRONMENT, INSTALL = ("official-bert",), ".venv", "make install"


def tokens(given, kind):
    tokenizer = FullTokenizer(given.vocabulary(kind), do_lower_case=kind != "cased")
    return [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in given.texts(kind)]


def offsets(given):
    tokenizer = FullTokenizer(given.vocabulary())
    spans = [tokenizer.tokenize_with_offsets(text) for text in given.texts("uncased")]
    return [[(tokenizer.vocab[token], *span) for token, *span in row] for row in spans]


def pairs(given):
    import official_bert

    tokenizer, rows = official_bert.load_tokenizer(given.vocabulary()), []
    for a, b in given.values["pairs"]:
        row = tokenizer.encode([a], None if b is None else [b], max_seq_length=given.values["max_seq_length"])
        rows.append([row[name][0] for name in ("input_ids", "segment_ids")])
    return [[part.tolist() for part in row] for row in rows]


def instances(given):
    records = str(given.folder / "official_bert.tfrecord")
    flags = given.values["instances"] | {"output_file": records, "vocab_file": given.vocabulary()}
    command = [sys.executable, "-m", "official_bert", "create-pretraining-data"]
    subprocess.run([*command, *(f"--{name}={value}" for name, value in flags.items())], check=True, capture_output=True)
    return records


def squad(given):
    from official_bert.tasks.squad.decoding import DecodingRules, Logits, decode_all
    from official_bert.tasks.squad.features import FeatureMaker
    from official_bert.tasks.squad.reading import read_squad

    asked, examples = given.squad(), read_squad(given.squad()["file"]).examples
    lengths = (asked[name] for name in ("max_seq_length", "doc_stride", "max_query_length"))
    features = FeatureMaker(FullTokenizer(given.vocabulary()), *lengths).make(examples)
    logits = [Logits(*(np.array(row[name]) for name in ("start_logits", "end_logits"))) for row in asked["results"]]
    rules = DecodingRules(
        **{name: asked[name] for name in ("n_best_size", "max_answer_length")}, version_2_with_negative=False
    )
    return {key: found.prediction for key, found in decode_all(examples, features, logits, rules).items()}
