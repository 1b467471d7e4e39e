"""Texts that are too long: their head, their tail, half of each, or windows whose logits are averaged, in training,
answers and exports.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import VOCAB, make_config

from official_bert.data.batches.feature_rows import TextFeatures
from official_bert.data.batches.text_features import make_features
from official_bert.data.rows import Rows
from official_bert.interface.predictor import Predictor
from official_bert.run_folder import RunFolder
from official_bert.runs.configuration import run_config
from official_bert.runs.fine_tuning import FineTuning
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.text import graph_packing, packing
from official_bert.text.packing import Template
from official_bert.text.tokenization import FullTokenizer
from official_bert.training.machines.cluster import Placement

pytestmark = pytest.mark.usefixtures("eager_predictors")

LONG = (
    "the old bridge in the north of the town was under water and the way to the atlas was not on any of the old "
    "maps we had"
)


@pytest.mark.parametrize(
    ("part", "count", "wanted"),
    [
        ("head", 3, [1, 2, 3]),
        ("tail", 3, [5, 6, 7]),
        ("head_tail", 4, [1, 2, 6, 7]),
        ("head_tail", 3, [1, 2, 7]),
        ("head_tail", 1, [1]),
        ("tail", 0, []),
        ("head_tail", 7, [1, 2, 3, 4, 5, 6, 7]),
        ("tail", 9, [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_what_is_kept_of_a_long_text(part, count, wanted):
    assert packing.keep([1, 2, 3, 4, 5, 6, 7], count, part) == wanted


@pytest.mark.parametrize("part", ["head", "tail", "head_tail"])
def test_exported_models_keep_the_same(part):
    rng = np.random.default_rng(0)
    firsts, seconds = ([rng.integers(5, 99, size).tolist() for size in rng.integers(0, 14, 60)] for _ in range(2))
    for pairs in (False, True):
        ragged = [tf.ragged.constant(side, tf.int32) for side in (firsts, seconds)]
        layout, cut = graph_packing.pack_batch(ragged[0], ragged[1] if pairs else None, Template(1, 2), 12, part=part)
        for row, (first, second) in enumerate(zip(firsts, seconds)):
            second = second if pairs else []
            room = 12 - (3 if second else 2)
            one, other = packing.truncate_pair(first, second, room)
            ids, segments = packing.Template(1, 2).pack(
                packing.keep(first, len(one), part), packing.keep(second, len(other), part)
            )
            real = int(tf.reduce_sum(layout.input_mask[row]))
            assert (
                layout.input_ids[row, :real].numpy().tolist() == ids
                and layout.segment_ids[row, :real].numpy().tolist() == segments
            )
            assert bool(cut[row]) == (len(first) + len(second) > room)


def test_windows_are_rows_with_the_label_of_their_text():
    tokenizer = FullTokenizer(VOCAB)
    words = tokenizer.convert_tokens_to_ids(["the", "old", "man", "was", "under"])
    arrays = make_features(
        ["the old man was under", "", "the old"], None, tokenizer, 5, truncate="windows", doc_stride=2
    )
    rows = TextFeatures(arrays, {"label_ids": np.array([7, 8, 9])})
    first, last = tokenizer.special_id("[CLS]"), tokenizer.special_id("[SEP]")
    assert [(row["input_ids"].tolist(), int(row["label_ids"])) for row in rows] == [
        ([first, *words[:3], last], 7),
        ([first, *words[2:], last], 7),
        ([first, last], 8),
        ([first, *words[:2], last], 9),
    ]
    assert (rows.longer, rows.number_of_texts) == (1, 3) and make_features(
        ["the old man was under"], None, tokenizer, 5
    )["longer"] == 1


def config(**options):
    windows = {"doc_stride": 5} if options.get("truncate") == "windows" else {}
    return make_config(
        "classification",
        options={"max_seq_length": 12, **windows, **options},
        training=run_config.DEFAULTS["training"]
        | {"batch_size": 8, "eval_batch_size": 3, "epochs": 1.0, "report": False},
    )


@pytest.fixture(scope="module")
def rows():
    words = LONG.split()
    return [
        {"text": " ".join(words[start : start + 1 + 3 * (start % 8)]), "label": "even" if start % 2 else "odd"}
        for start in range(28)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["windows", "head_tail", "tail"])
def test_a_text_gets_the_same_answer_from_the_run_and_from_what_is_exported(kind, rows, tmp_path):
    files = DataFiles(
        train_file=Rows("train", rows[:14]), eval_file=Rows("dev", rows[14:]), predict_file=Rows("new", rows)
    )
    task, run = load_task(config(truncate=kind)), RunFolder(str(tmp_path))
    FineTuning(task, files, run, Placement(), steps=Steps(predict=True), report=lambda _: None).carry_out()
    lines = (tmp_path / "predictions.tsv").read_text().splitlines()[1:]
    written = np.array([line.split("\t")[2:] for line in lines], np.float64)
    answers = Predictor(str(tmp_path)).answer([{"text": row["text"]} for row in rows])
    np.testing.assert_allclose(written, [answer["probabilities"] for answer in answers], atol=1e-5)
    if kind == "windows":
        assert not any(answer["truncated"] for answer in answers)
        # By hand: ten tokens a window, five apart.
        task, model = restore_for_inference(str(tmp_path))
        special = [[task.tokenizer.special_id(name)] for name in ("[CLS]", "[SEP]")]
        for row, answer in [*zip(rows, answers)][::3]:  # of every length
            tokens = task.tokenizer.convert_tokens_to_ids(task.tokenizer.tokenize(row["text"]))
            starts = [start for start in range(0, max(len(tokens), 1), 5) if start == 0 or start + 5 < len(tokens)]
            logits = []
            for start in starts:
                ids = np.array([special[0] + tokens[start : start + 10] + special[1]], np.int32)
                logits.append(
                    model({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)})[
                        "logits"
                    ][0]
                )
            np.testing.assert_allclose(answer["logits"], np.mean(logits, axis=0), atol=1e-5)
    else:
        tokenizer = FullTokenizer(VOCAB)
        assert [answer["truncated"] for answer in answers] == [
            len(tokenizer.tokenize(row["text"])) > 10 for row in rows
        ]


@pytest.mark.slow
def test_an_exported_model_averages_windows_as_the_run_does(rows, tmp_path):
    from commands import run_here

    files = DataFiles(train_file=Rows("train", rows[:14]), eval_file=Rows("dev", rows[14:]))
    run = RunFolder(str(tmp_path / "run"))
    FineTuning(load_task(config(truncate="windows")), files, run, Placement(), report=lambda _: None).carry_out()
    done = run_here(
        "-m",
        "official_bert.run_export",
        f"--checkpoint={tmp_path}/run",
        f"--output={tmp_path}/model",
        "--warmup_batch_sizes=1",
    )
    assert done.returncode == 0, done.stderr
    asked = [{"text": row["text"]} for row in rows]
    wanted, found = (Predictor(str(tmp_path / name)).answer(asked) for name in ("run", "model"))
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(one["logits"], other["logits"], atol=1e-5)


@pytest.mark.parametrize(("kind", "key"), [("classifier", "class_weights"), ("multi_label", "positive_weights")])
def test_balanced_weights_count_the_windows_that_are_trained_on(kind, key):
    # 8 windows of 10 tokens, 5 apart, or one: (40 - 10) / 5 + 2 to its end
    word = {"long": " ".join(["word"] * 40), "short": "word"}
    texts = [{"text": word[label], "label": label} for label in ("long", "long", "short", "short", "short")]
    options = {"kind": kind, key: "balanced", "truncate": "windows"}
    found = load_task(config(**options, dev_share=0.0)).data.resolve(
        DataFiles(train_file=Rows("train", texts)), Steps(evaluate=False)
    )
    features = found.train.examples
    counts = [sum(features.texts == number) for number in range(5)]
    assert counts == [7, 7, 1, 1, 1]
    if kind == "classifier":
        weights = {"long": 17 / (2 * 14), "short": 17 / (2 * 3)}
        wanted = [weights[texts[number]["label"]] for number in features.texts]
    else:
        weights = {"long": 3 / 14, "short": 14 / 3}
        wanted = [
            [weights["long"], 1.0] if texts[number]["label"] == "long" else [1.0, weights["short"]]
            for number in features.texts
        ]
    np.testing.assert_allclose([features[number]["loss_weights"] for number in range(len(features))], wanted, rtol=1e-6)
    assert any(line.endswith(f"long {weights['long']:.4g}, short {weights['short']:.4g}") for line in found.notes)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"truncate: windows are those of a single text, got pairs"):
        load_task(config(truncate="windows", text_pair_column="other"))
    with pytest.raises(ValueError, match=r"truncate: windows are those of a single text, got pairs"):
        load_task(make_config("glue", options={"dataset": "mrpc", "truncate": "windows"}))
    with pytest.raises(ValueError, match="truncate: a task of choices expects head"):
        load_task(make_config("swag", options={"truncate": "tail"}))
    with pytest.raises(ValueError, match="doc_stride: expected at least 1, got 0"):
        load_task(config(doc_stride=0))
    nothing = r"doc_stride: expected options.truncate: windows \(not tail\) with it, got 5 without; it would do nothing"
    with pytest.raises(ValueError, match=nothing):
        load_task(config(doc_stride=5, truncate="tail"))
    with pytest.raises(ValueError, match="truncate: expected one of"):
        load_task(config(truncate="middle"))
    task = load_task(config(labels=["a", "b"]))
    with pytest.raises(ValueError, match="--max_windows: read by"):
        make_served_model(task, task.build_model(), ServingOptions(max_windows=3))
    windowed = load_task(config(labels=["a", "b"], truncate="windows"))
    served = make_served_model(windowed, windowed.build_model(), ServingOptions(max_windows=2))
    with pytest.raises(tf.errors.InvalidArgumentError, match="windows of 12 tokens over a text"):
        served.answer_text({"text": tf.constant([LONG])})


def test_averages_of_unfinished_texts_are_left_out():
    from official_bert.tasks.texts.base import _by_text

    logits = [{"logits": np.array([number, 0.0])} for number in range(4)]
    found = _by_text([*logits, None], np.array([0, 0, 1, 2, 2]))
    assert (
        json.dumps([None if row is None else row["logits"].tolist() for row in found])
        == "[[0.5, 0.0], [2.0, 0.0], null]"
    )
    with pytest.raises(
        ValueError, match=r"training\.eval_steps: expected enough batches .* got 2 of 4 rows and no text whole"
    ):
        _by_text([None, logits[0], logits[1], None], np.array([0, 0, 1, 1]))
