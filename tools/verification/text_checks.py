"""Checks tokens, training instances and question answering, whose results must be equal."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from official_bert.tools.verification.check import Check, largest, read_json

# A prediction, the gold answers, exact match and F1 as the published definition gives them, worked out by hand.
SCORED = (
    ("The Cat!", ["cat."], 1.0, 1.0),  # case, punctuation and articles do not count
    ("two brass hinges", ["brass hinges"], 0.0, 0.8),  # precision 2/3, recall 1
    ("a lamp", ["an old lamp", "lamp post of brass"], 0.0, 2 / 3),  # the better one: precision 1, recall 1/2
    ("hinges", ["lamp"], 0.0, 0.0),
    ("the the oil", ["oil oil"], 0.0, 2 / 3),  # a repeated word counts as often as both have it
)


def wrong_tokens(folder: pathlib.Path) -> float:
    """Returns the number of texts whose tokens differ, lower-cased and cased."""
    from official_bert.text.tokenization import FullTokenizer

    rows, wrong = read_json(folder / "tokenizer.json"), 0
    for form in ("uncased", "cased"):
        tokenizer = FullTokenizer(str(folder / f"vocab_{form}.txt"), do_lower_case=form == "uncased")
        wrong += sum(tokenizer.tokenize(row["text"]) != row[form] for row in rows)
    return wrong


def wrong_ids(folder: pathlib.Path) -> float:
    """Returns the number of texts whose ids from the compiled tokenizer differ from those of the golden tokens."""
    from official_bert.text.fast_tokenization import FastTokenizer

    rows, wrong = read_json(folder / "tokenizer.json"), 0
    for form in ("uncased", "cased"):
        words = (folder / f"vocab_{form}.txt").read_text(encoding="utf-8").splitlines()
        number = {word: index for index, word in enumerate(words)}
        tokenizer = FastTokenizer(str(folder / f"vocab_{form}.txt"), do_lower_case=form == "uncased")
        ids, lengths = tokenizer.encode_lines([row["text"] for row in rows])
        found = np.split(ids, np.cumsum(lengths)[:-1])
        wrong += sum(one.tolist() != [number.get(token) for token in row[form]] for one, row in zip(found, rows))
    return wrong


def wrong_instances(folder: pathlib.Path) -> float:
    """Returns how many numbers differ in the instances of a seed, which TensorFlow parses from the records."""
    import tensorflow as tf

    from official_bert.data.pretraining import token_store
    from official_bert.data.pretraining.generator import Generator
    from official_bert.data.pretraining.instances import InstanceConfig
    from official_bert.data.pretraining.masking import VocabularyFacts
    from official_bert.data.pretraining.scratch import Scratch
    from official_bert.text.fast_tokenization import FastTokenizer

    wanted, flags = np.load(folder / "generator_base.npz"), read_json(folder / "generator_base.json")["flags"]
    seed, vocab_file, records = flags.pop("random_seed"), str(folder / "vocab_uncased.txt"), str(folder / "tfrecord")
    tokenizer = FastTokenizer(vocab_file)
    description = token_store.describe([str(folder / "text_a.txt")], vocab_file, True, "error", False)
    store = token_store.build_store(str(folder / "tokens"), description, tokenizer)
    facts = VocabularyFacts.of(tokenizer.tokenizer)
    Generator(store, InstanceConfig(**flags), facts, seed, Scratch(str(folder))).write([records])
    rows = [tf.train.Example.FromString(row.numpy()).features.feature for row in tf.data.TFRecordDataset(records)]
    wrong = 0
    for name, array in wanted.items():
        kind = "float_list" if array.dtype == np.float32 else "int64_list"
        found = np.array([getattr(row[name], kind).value for row in rows])
        if found.shape != array.shape:
            raise ValueError(f"{name}: expected the shape {array.shape}, got {found.shape}")
        wrong += np.count_nonzero(found.astype(array.dtype) != array)
    return wrong


def _squad(folder: pathlib.Path) -> tuple[dict[str, Any], Any, list]:
    from official_bert.tasks.squad.features import FeatureMaker
    from official_bert.text.tokenization import FullTokenizer

    wanted = read_json(folder / "squad_v1_features.json")
    lengths = (wanted[key] for key in ("max_seq_length", "doc_stride", "max_query_length"))
    return wanted, FeatureMaker(FullTokenizer(str(folder / "vocab_uncased.txt")), *lengths), [folder / "squad_v1.json"]


def wrong_features(folder: pathlib.Path) -> float:
    """Returns the number of windows of questions and contexts that differ, for training and for prediction."""
    from official_bert.data.batches.feature_rows import TextFeatures
    from official_bert.tasks.squad.features import as_arrays
    from official_bert.tasks.squad.reading import read_squad

    wanted, maker, (path,) = _squad(folder)
    made = maker.make(read_squad(str(path), training=True).examples, training=True)
    arrays = as_arrays(made)
    rows = TextFeatures(arrays, {name: arrays[name] for name in ("start_positions", "end_positions")})
    wrong = abs(len(made) - len(wanted["train"]))
    for number, (feature, row) in enumerate(zip(made, wanted["train"])):
        values = rows[number]
        padding = [0] * (wanted["max_seq_length"] - len(values["input_ids"]))
        wrong += not (
            (feature.example_index, feature.window_index) == (row["example_index"], row["doc_span_index"])
            and feature.tokens == row["tokens"]
            and all([*values[name], *padding] == row[name] for name in ("input_ids", "segment_ids"))
            and (values["start_positions"], values["end_positions"]) == (row["start_position"], row["end_position"])
        )
    made = maker.make(read_squad(str(path)).examples)
    wrong += abs(len(made) - len(wanted["predict"]))
    for feature, row in zip(made, wanted["predict"]):
        places = [(feature.first_position + place, place) for place in range(feature.window_length)]
        wrong += not (
            feature.input_ids.tolist() == row["input_ids"][: len(feature.input_ids)]
            and {str(at): feature.word_at(at) for at, _ in places} == row["token_to_orig_map"]
            and {str(at): bool(feature.max_context[place]) for at, place in places} == row["token_is_max_context"]
        )
    return wrong


def wrong_answers(folder: pathlib.Path) -> float:
    """Returns the number of questions whose answer, or list of best answers, differs for recorded logits."""
    from official_bert.tasks.squad.decoding import DecodingRules, Logits, decode_all
    from official_bert.tasks.squad.reading import read_squad

    wanted, maker, (path,) = _squad(folder)
    examples, arrays = read_squad(str(path)).examples, np.load(folder / "squad_v1_logits.npz")
    logits = [Logits(start, end) for start, end in zip(arrays["start_logits"], arrays["end_logits"])]
    rules = DecodingRules(
        version_2_with_negative=False,
        **{key: wanted[key] for key in ("n_best_size", "max_answer_length", "null_score_diff_threshold")},
    )
    found = decode_all(examples, maker.make(examples), logits, rules)
    return sum(
        found[key].prediction != wanted["predictions"][key] or not _same_answers(found[key].nbest, answers)
        for key, answers in wanted["nbest"].items()
    )


def _same_answers(found: Sequence[Any], wanted: Sequence[dict[str, Any]]) -> bool:
    """Returns whether the first answers have the wanted texts and numbers."""
    return len(found) >= len(wanted) and all(
        answer.text == row["text"]
        and all(abs(getattr(answer, name) - row[name]) <= 1e-9 for name in ("probability", "start_logit", "end_logit"))
        for answer, row in zip(found, wanted)
    )


def metric_difference(_: pathlib.Path) -> float:
    """Returns the largest difference from exact match and F1 worked out by hand, of each question and of all."""
    from official_bert.tasks.squad.decoding import Decoded
    from official_bert.tasks.squad.metrics import question_scores, squad_metrics

    questions = [
        {"id": str(number), "answers": [{"text": text} for text in row[1]]} for number, row in enumerate(SCORED)
    ]
    articles = [{"title": "", "paragraphs": [{"context": "", "qas": questions}]}]
    predictions = {str(number): row[0] for number, row in enumerate(SCORED)}
    exact, f1 = question_scores(articles, predictions, version_2=False)
    found = [[exact[key], f1[key]] for key in predictions]
    decoded = {key: Decoded(text, (), 0.0, text) for key, text in predictions.items()}
    means = squad_metrics(articles, decoded, version_2=False)
    wanted = [row[2:] for row in SCORED]
    return largest([*found, [means["exact_match"], means["f1"]]], [*wanted, np.mean(wanted, axis=0)])


CHECKS = (
    Check("tokenizer", "texts of 2 x 1,694", 0, wrong_tokens),
    Check("compiled tokenizer", "texts of 2 x 1,694", 0, wrong_ids),
    Check("training instances of a seed", "numbers of 271 instances", 0, wrong_instances),
    Check("SQuAD features", "windows of 2 x 207", 0, wrong_features),
    Check("SQuAD answers", "questions of 18", 0, wrong_answers),
    Check("SQuAD metric", "exact match, F1", 1e-12, metric_difference),
)
