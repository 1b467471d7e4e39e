"""The trainings that `compare_trainings.py` compares: a command line each, and small data drawn from a seed."""

import csv
import dataclasses
import json
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TESTS = pathlib.Path(__file__).parent
S, P, K = 24, 4, 3  # tokens of a row, predictions of a record, instances of a packed row
STEPS = 3
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = tuple(first + second + last for first in "bdklmt" for second in "aeiou" for last in "nr")  # 60, of no language
VOCABULARY = (*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), ",", ".", "?", *WORDS)
ADAPTERS = "{rank: 2, dropout: 0.2, target_modules: [query, value]}"
CONFIG = f"""
model: {{vocab_size: {len(VOCABULARY)}, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2,
  intermediate_size: 32, max_position_embeddings: 64, initializer_range: 0.2}}
tokenizer: {{vocab_file: vocab.txt}}
optimizer: {{learning_rate: 0.01, warmup_proportion: 0.34}}
training: {{batch_size: 8, eval_batch_size: 8, steps: {STEPS}, epochs: 0.0, log_every: 1, save_every: {STEPS},
  steps_per_loop: 1, report: false}}
"""


@dataclasses.dataclass(frozen=True)
class Case:
    """A training: a command of the package, its flags, and keys of the configuration beside those of CONFIG."""

    name: str
    command: str
    flags: tuple[str, ...]
    keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()  # cases whose runs it begins with or learns from
    devices: int = 1

    def arguments(self) -> list[str]:
        """Returns the command line behind `python`, in the folder with the data."""
        return [
            "-m",
            f"official_bert.{self.command}",
            "--config=tiny.yaml",
            f"--output_dir={self.name}",
            "--cache_dir=cache",
            *self.flags,
            *(f"--set={key}={value}" for key, value in self.keys.items()),
            *([f"--num_cpu_devices={self.devices}", "--strategy=mirrored"] if self.devices > 1 else []),
        ]


def tuning(name: str, task: str, data: str = "", needs: Sequence[str] = (), start: str = "", **keys: Any) -> Case:
    """Returns a fine-tuning on DATA-train, DATA-eval and DATA-test, or on the files of tests/fixtures if `data` is a
    folder there. Keys have __ for dots; those without belong to `options`.
    """
    if (folder := TESTS / "fixtures" / data).is_dir() and data:
        files = [f"--data_dir={folder}", "--do_predict"]
    else:
        suffix = {"squad": "json", "ner": "txt"}.get(task, "csv")
        parts = {"train": "train", "eval": "eval"} | ({} if task == "splade" else {"predict": "test"})
        files = [f"--{flag}_file={data}-{part}.{suffix}" for flag, part in parts.items()]
    begin = [f"--init_checkpoint={start}"] if start else []
    return Case(
        name,
        "run_finetuning",
        (f"--task={task}", *files, *begin),
        dotted(keys, S),
        tuple(needs) or ((start,) if start else ()),
    )


def pretraining(name: str, data: str = "masked", needs: Sequence[str] = (), devices: int = 1, **keys: Any) -> Case:
    """Returns a pre-training on DATA-train and DATA-eval."""
    files = (f"--input_file={data}-train.tfrecord", f"--eval_input_file={data}-eval.tfrecord")
    lengths = {"options.max_predictions_per_seq": P}
    return Case(name, "run_pretraining", files, lengths | dotted(keys, S), tuple(needs), devices)


def dotted(keys: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Returns keys of a configuration: `training__xla` is training.xla, `crf` is options.crf."""
    sections = {key: key.replace("__", ".") if "__" in key or key == "phases" else f"options.{key}" for key in keys}
    named = {sections[key]: value for key, value in keys.items()}
    return {"options.max_seq_length": length} | named


def student(of: str, **factors: Any) -> dict[str, Any]:
    """Returns the keys of a student of a run."""
    return {"training__teacher": of} | {f"training__distillation__{key}": value for key, value in factors.items()}


# The column of scores is left alone.
GROUPS = {"group_size": 4, "label_column": '""'}
LOSSES_OF_PAIRS: Mapping[str, Mapping[str, Any]] = {
    "contrastive": GROUPS,
    "contrastive_both": GROUPS,
    "triplet": {"negative_columns": "[other]"},
    "margin_mse": {"negative_columns": "[other]", "teacher_columns": "[of_pair,of_other]"},
    "kl": {"negative_columns": "[other]", "teacher_columns": "[of_pair,of_other]"},
}
OF_SCORES = {"train_on": "scores", "score_column": "score", "score_range": "[0,5]"}
NEXT_TOKEN = {"objective": "next_token", "model__attention": "left_to_right"}
PACKED = {"pack": True, "max_instances_per_row": K}
TWO_PHASES = "[{steps: 2}, {steps: 1, batch_size: 4}]"
WINDOWS = {"max_query_length": 8, "doc_stride": 8}
CASES: tuple[Case, ...] = (
    # Pre-training.
    pretraining("words_and_sentences"),
    pretraining("words_and_order", sentence_task="sop"),
    pretraining("words", sentence_task="none"),
    pretraining("words_beside_sentences", sentence_loss=False),
    pretraining("whole_words", "unmasked", options__masking__strategy="whole_word"),
    pretraining(
        "span_boundary", "unmasked", sentence_task="none", boundary_weight=1.0, options__masking__strategy="span"
    ),
    pretraining("packed_rows", **PACKED),
    pretraining("masks_on_the_fly", "unmasked"),
    pretraining("next_token", **NEXT_TOKEN),
    pretraining(
        "next_token_alone", "unmasked", objective="next_token", sentence_task="none", model__attention="left_to_right"
    ),
    pretraining("replaced_tokens", "unmasked", objective="replaced_tokens", sentence_task="none", generator_width=0.5),
    pretraining(
        "replaced_tokens_disentangled",
        objective="replaced_tokens",
        sentence_task="none",
        embedding_sharing="disentangled",
        generator_width=0.5,
        adds_first=True,
    ),
    pretraining("micro_batches", training__accumulation_steps=2),
    pretraining("bfloat16", training__precision="bfloat16"),
    pretraining("lamb_and_phases", optimizer__name="lamb", training__steps=0, phases=TWO_PHASES),
    pretraining("two_replicas", devices=2),
    pretraining("two_replicas_micro_batches", devices=2, training__accumulation_steps=2, sentence_task="none"),
    # Labels, scores and choices.
    tuning("glue", "mrpc", "glue/MRPC"),
    tuning("glue_scores", "stsb", "glue/STS-B"),
    tuning("table", "classification", "labels"),
    tuning("weights_and_smoothing", "classification", "labels", class_weights="balanced", label_smoothing=0.1),
    tuning("windows", "classification", "labels", truncate="windows", doc_stride=4, max_seq_length=10),
    tuning("several_labels", "classification", "several", kind="multi_label", threshold="tuned"),
    tuning("scores", "classification", "scores", kind="regression", label_column="score"),
    Case(
        "held_out_part",
        "run_finetuning",
        ("--task=classification", "--train_file=labels-train.csv", "--predict_file=labels-test.csv"),
        {"options.max_seq_length": S, "options.dev_share": 0.3},
    ),
    tuning("table_micro_batches", "classification", "labels", training__accumulation_steps=2),
    tuning("table_bfloat16", "classification", "labels", training__precision="bfloat16"),
    tuning("choices", "swag", "swag", max_seq_length=48),
    # Questions and tags.
    tuning("questions", "squad", "answered", **WINDOWS),
    tuning("questions_without_answer", "squad", "some", **WINDOWS, version_2_with_negative=True),
    tuning("tags", "ner", "tags", doc_stride=8),
    tuning("tags_weighted", "ner", "tags", doc_stride=8, class_weights="balanced", label_smoothing=0.1),
    tuning("tags_crf", "ner", "tags", doc_stride=8, crf=True),
    tuning("tags_features", "ner", "tags", start="words", doc_stride=8, features="last", lstm_size=8, lstm_layers=1),
    # Search.
    *(tuning(f"pairs_{loss}", "retrieval", "pairs", loss=loss, **keys) for loss, keys in LOSSES_OF_PAIRS.items()),
    tuning("pairs_cosine", "retrieval", "pairs", loss="cosine", **OF_SCORES),
    tuning("pairs_cosent", "retrieval", "pairs", loss="cosent", **GROUPS, **OF_SCORES),
    tuning("pairs_of_texts", "retrieval", "pairs", train_on="texts", **GROUPS),
    tuning("pairs_nested_in_parts", "retrieval", "pairs", matryoshka="[4,8]", texts_at_once=4, **GROUPS),
    tuning("sparse", "splade", "pairs", start="words", penalty_steps=2, **GROUPS),
    *(
        tuning(f"rerank_{loss}", "reranking", "pairs", loss=loss, negative_columns="[other]")
        for loss in ("pointwise", "pairwise", "listwise")
    ),
    # Students.
    tuning("student_labels", "classification", "labels", ["table"], **student("table")),
    tuning("student_labels_computed", "classification", "labels", ["table"], **student("table", keep="computed")),
    tuning("student_tags", "ner", "tags", ["tags"], doc_stride=8, **student("tags")),
    tuning("student_tags_computed", "ner", "tags", ["tags"], doc_stride=8, **student("tags", keep="computed")),
    tuning("student_answers", "squad", "answered", ["questions"], **WINDOWS, **student("questions")),
    tuning("student_choices", "swag", "swag", ["choices"], max_seq_length=48, **student("choices")),
    tuning("student_vectors", "retrieval", "pairs", ["pairs_contrastive"], **GROUPS, **student("pairs_contrastive")),
    pretraining("teacher_of_words", sentence_task="none", model__num_hidden_layers=2),
    pretraining(
        "student_words",
        needs=["teacher_of_words"],
        sentence_task="none",
        **student("teacher_of_words", labels=1.0, answers=2.0, states=1.0, student_layers=[0]),
    ),
    pretraining(
        "student_relations",
        needs=["teacher_of_words"],
        sentence_task="none",
        **PACKED,
        **student("teacher_of_words", labels=0.0, answers=0.0, relations=1.0, relation_heads=4),
    ),
    # Adapters.
    tuning("adapters", "classification", "labels", start="words", training__adapters=ADAPTERS),
    tuning("adapters_of_tags", "ner", "tags", start="words", doc_stride=8, training__adapters=ADAPTERS),
)


def chosen(names: Sequence[str]) -> list[Case]:
    """Returns the cases of these names (none: all) and those that they need, in the order of CASES.

    Raises ValueError for an unknown name.
    """
    known = {case.name: case for case in CASES}
    if unknown := sorted(set(names) - known.keys()):
        raise ValueError(f"--only: expected some of {', '.join(known)}, got {', '.join(unknown)}")
    wanted = set(names or known)
    wanted |= {other for name in wanted for other in known[name].needs}
    return [case for case in CASES if case.name in wanted]


def write_data(folder: pathlib.Path, seed: int = 0) -> None:
    """Writes the configuration, the vocabulary, and the files of all cases but the records."""
    rng = random.Random(seed)
    (folder / "tiny.yaml").write_text(CONFIG, encoding="utf-8")
    (folder / "vocab.txt").write_text("".join(f"{entry}\n" for entry in VOCABULARY), encoding="utf-8")
    for part, count in (("train", 26), ("eval", 11), ("test", 6)):
        rows = list(table_rows(rng, count))
        for name, columns in (
            ("labels", ("text", "label")),
            ("several", ("text", "label")),
            ("scores", ("text", "score")),
            ("pairs", ("text", "text_pair", "other", "score", "of_pair", "of_other")),
        ):
            key = {"several": "labels"}.get(name, "label")
            with open(folder / f"{name}-{part}.csv", "w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows([[row[key if column == "label" else column] for column in columns] for row in rows])
        for name, unanswered in (("answered", 0.0), ("some", 0.4)):
            articles = [article(rng, f"{part}{number}", unanswered) for number in range(count // 2)]
            (folder / f"{name}-{part}.json").write_text(json.dumps({"version": "1.1", "data": articles}), "utf-8")
        sentences = (tagged_sentence(rng) for _ in range(count))
        (folder / f"tags-{part}.txt").write_text("\n".join(sentences), encoding="utf-8")


def table_rows(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Yields rows with all columns; labels and scores depend on the words."""
    for number in range(count):
        words = rng.choices(WORDS, k=rng.randint(4, 14))
        other = [*words[:3], *rng.choices(WORDS, k=3)]
        yield {
            "text": " ".join(words),
            "text_pair": " ".join(other),
            "other": " ".join(rng.choices(WORDS, k=5)),
            "label": ("early", "late", "never")[(WORDS.index(words[0]) + (number % 5 == 0)) % 3],
            "labels": ",".join(name for name, place in (("a", 0), ("b", 1), ("c", 2)) if words[place] < "l") or "c",
            "score": round(5 * rng.random(), 2),
            "of_pair": round(4 + rng.random(), 3),
            "of_other": round(3 * rng.random(), 3),
        }


def article(rng: random.Random, name: str, unanswered: float) -> dict[str, Any]:
    """Returns an article of SQuAD with a paragraph and two questions."""
    words = rng.choices(WORDS, k=rng.randint(8, 26))
    context, questions = " ".join(words) + ".", []
    for number in range(2):
        place = rng.randrange(len(words) - 2)
        text = " ".join(words[place : place + 2])
        answers = [{"text": text, "answer_start": len(" ".join([*words[:place], ""]))}]
        none = rng.random() < unanswered
        questions.append(
            {
                "id": f"{name}-{number}",
                "question": " ".join([words[max(place - 1, 0)], *rng.choices(WORDS, k=2)]) + "?",
                "answers": [] if none else answers,
                **({"is_impossible": none} if unanswered else {}),
            }
        )
    return {"title": name, "paragraphs": [{"context": context, "qas": questions}]}


def tagged_sentence(rng: random.Random) -> str:
    """Returns the lines of a sentence with its tags."""
    lines = []
    while len(lines) < 4:
        kind = rng.choice(["", "", "PER", "LOC"])
        lines += [f"{rng.choice(WORDS)} {f'{letter}-{kind}' if kind else 'O'}" for letter in "BI"[: rng.randint(1, 2)]]
    return "\n".join(lines) + "\n"


def write_records(folder: pathlib.Path, seed: int = 0) -> None:
    """Writes records of pre-training with masks and without, by TensorFlow's own writer."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(seed)

    def instance() -> dict[str, np.ndarray]:
        length, first = int(rng.integers(9, S + 1)), int(rng.integers(0, len(WORDS)))
        ids = np.zeros(S, np.int64)
        ids[:length] = len(VOCABULARY) - len(WORDS) + (first + np.arange(length)) % len(WORDS)
        ids[[0, length // 2, length - 1]] = [2, 3, 3]
        places = np.arange(S)
        return {
            "input_ids": ids,
            "input_mask": places < length,
            "segment_ids": (places > length // 2) & (places < length),
            "word_starts": (ids > len(SPECIAL)) & (rng.random(S) < 0.7),
            "next_sentence_labels": rng.integers(0, 2, 1),
            "schema_version": np.ones(1),
        }

    def masked(row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        ids = row["input_ids"].copy()
        places = np.sort(rng.choice(np.flatnonzero(ids > len(SPECIAL)), P, replace=False))
        weights = np.arange(P) < rng.integers(1, P + 1)
        originals = ids[places] * weights
        ids[places[weights]] = SPECIAL.index("[MASK]")
        return {key: row[key] for key in ("input_mask", "segment_ids", "next_sentence_labels")} | {
            "input_ids": ids,
            "masked_lm_positions": places * weights,
            "masked_lm_ids": originals,
            "masked_lm_weights": weights.astype(np.float32),
        }

    def write(path: pathlib.Path, rows: Sequence[Mapping[str, np.ndarray]]) -> None:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in rows:
                feature = {
                    name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
                    if values.dtype == np.float32
                    else tf.train.Feature(int64_list=tf.train.Int64List(value=values.astype(np.int64)))
                    for name, values in row.items()
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    for part, count in (("train", 40), ("eval", 12)):
        rows = [instance() for _ in range(count)]
        write(folder / f"unmasked-{part}.tfrecord", rows)
        write(folder / f"masked-{part}.tfrecord", [masked(row) for row in rows])
