"""Retrieval trains on negatives, teachers' scores, labels, single texts and collections, and searches whole
collections.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import data_files, make_config, resolve

from official_bert.search import measures
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task

SMALL = {"group_size": 2, "max_seq_length": 12}


def config_of(training=None, model=None, **options):
    return make_config(
        "retrieval",
        options=SMALL | options,
        training={"batch_size": 4, "eval_batch_size": 4} | (training or {}),
        model=model or {},
    )


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


ROWS = [
    {"text": "air", "text_pair": "water", "no": ["road", "king"], "t": [2.0, 1.0, -1.0]},
    {"text": "city", "text_pair": "river", "no": ["film"], "t": [3.0, 0.5]},
    {"text": "book", "text_pair": "team", "no": "war", "t": [1.0, 0.0]},
    {"text": "church", "text_pair": "school", "no": "music", "t": [1, 2]},
]


def cosines_of(vectors):
    return np.einsum("btd,bd->bt", vectors[:, 1:], vectors[:, 0])


def test_rows_have_a_text_for_each_negative_and_the_loss_reads_them(tmp_path):
    path = write(tmp_path / "train.jsonl", ROWS)
    found = resolve(config_of(negative_columns=["no"]), Steps(evaluate=False), train_file=path)
    batch = found.train.batch(0)
    assert batch["input_ids"].shape[1] == 4 and np.sum(batch["text_numbers"] == -1) == 3
    absent = batch["text_numbers"] == -1
    assert not batch["input_mask"][absent].any() and batch["input_mask"][~absent].any(axis=-1).all()
    vectors = found.model(batch)["embedding"].numpy()
    total, weight = found.task.objective.losses({"embedding": tf.constant(vectors)}, batch)["loss"]
    wanted = 0.0
    for row in range(4):
        group = [
            (other, place)
            for other in range(row // 2 * 2, row // 2 * 2 + 2)
            for place in (1, 2, 3)
            if not absent[other, place]
        ]
        logits = {key: vectors[row, 0] @ vectors[key] / 0.05 for key in group}
        wanted += np.logaddexp.reduce(list(logits.values())) - logits[row, 1]
    assert float(total) == pytest.approx(wanted, rel=1e-4) and float(weight) == 4.0


def test_teachers_scores_and_triplets(tmp_path):
    path = write(tmp_path / "train.jsonl", ROWS)
    for loss, options in (
        ("margin_mse", {"temperature": 0.1}),
        ("kl", {"temperature": 0.1}),
        ("triplet", {"margin": 0.5}),
    ):
        columns = {"negative_columns": ["no"]} | ({} if loss == "triplet" else {"teacher_columns": ["t"]})
        found = resolve(
            config_of(loss=loss, group_size=32, **columns, **options), Steps(evaluate=False), train_file=path
        )
        batch = found.train.batch(0)
        vectors = found.model(batch)["embedding"].numpy()
        wanted = 0.0
        for cosines, present, row in zip(cosines_of(vectors), batch["input_mask"].any(axis=-1)[:, 1:], range(4)):
            if loss == "triplet":
                wanted += np.mean([max(0.0, 0.5 - cosines[0] + other) for other in cosines[1:][present[1:]]])
                continue
            scores, teacher = cosines[present] / 0.1, batch["teacher"][row][present]
            if loss == "margin_mse":
                wanted += np.mean((scores[0] - scores[1:] - (teacher[0] - teacher[1:])) ** 2)
            else:
                logs, target = scores - np.logaddexp.reduce(scores), np.exp(teacher - np.logaddexp.reduce(teacher))
                wanted += np.sum(target * (np.log(target) - logs))
        assert float(
            found.task.objective.losses({"embedding": tf.constant(vectors)}, batch)["loss"][0]
        ) == pytest.approx(wanted, rel=1e-4), loss


def test_a_matryoshka_loss_is_the_sum_over_the_sizes(tmp_path):
    path = write(tmp_path / "train.jsonl", ROWS)
    found = resolve(config_of(matryoshka=[16, 4]), Steps(evaluate=False), train_file=path)
    batch = found.train.batch(0)
    vectors = found.model(batch)["embedding"].numpy()
    plain = load_task(config_of())
    short = vectors[..., :4] / np.linalg.norm(vectors[..., :4], axis=-1, keepdims=True)
    wanted = sum(
        float(plain.objective.losses({"embedding": tf.constant(part)}, batch)["loss"][0]) for part in (vectors, short)
    )
    total, weight = found.task.objective.losses({"embedding": tf.constant(vectors)}, batch)["loss"]
    assert float(total) == pytest.approx(wanted, rel=1e-5) and float(weight) == 4.0


def test_single_texts_are_pairs_under_two_dropout_masks(tmp_path):
    path = write(tmp_path / "train.jsonl", [{"text": word} for word in ("air", "water", "road", "king")])
    with pytest.raises(ValueError, match="expected dropout in the model"):
        resolve(config_of(train_on="texts"), Steps(evaluate=False), train_file=path)
    found = resolve(config_of(train_on="texts", model={"hidden_dropout_prob": 0.3}), train_file=path)
    batch = found.train.batch(0)
    assert found.held_out is None and np.array_equal(batch["input_ids"][:, 0], batch["input_ids"][:, 1])
    vectors = found.model(batch, training=True)["embedding"].numpy()
    assert np.abs(vectors[:, 0] - vectors[:, 1]).max() > 0.01


def test_prompts_stand_in_front_of_queries_and_passages(tmp_path):
    path = write(tmp_path / "train.jsonl", ROWS)
    found = resolve(
        config_of(negative_columns=["no"], query_prompt="the ", passage_prompt="a "),
        Steps(evaluate=False),
        train_file=path,
    )
    the, a = found.task.tokenizer.convert_tokens_to_ids(["the", "a"])
    batch = found.train.batch(0)
    present = batch["text_numbers"] != -1
    assert (batch["input_ids"][:, 0, 1] == the).all() and (batch["input_ids"][:, 1:, 1][present[:, 1:]] == a).all()


def make_collection(folder):
    folder.mkdir()
    (folder / "qrels").mkdir()
    write(
        folder / "corpus.jsonl",
        [
            {"_id": f"p{number}", "title": "", "text": word}
            for number, word in enumerate(("water", "road", "king", "river", "film", "war", "music"))
        ],
    )
    write(
        folder / "queries.jsonl",
        [{"_id": f"q{number}", "text": word} for number, word in enumerate(("air", "city", "book"))],
    )
    for name, rows in (
        ("train", [("q0", "p0", 1), ("q0", "p1", 0), ("q1", "p3", 2)]),
        ("dev", [("q2", "p5", 2), ("q2", "p6", 1)]),
    ):
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
        (folder / "qrels" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def test_a_collection_trains_and_is_searched_whole(tmp_path):
    folder = make_collection(tmp_path / "set")
    found = resolve(config_of(), data_dir=folder)
    batch = found.train.batch(0)
    # the judged passage is a negative
    assert batch["input_ids"].shape[:2] == (4, 3) and batch["example_weights"].sum() == 2
    names = [path.rsplit("/", 1)[1] for path in found.task.data.sources(data_files(data_dir=folder))["eval"]]
    assert names == ["dev.tsv", "queries.jsonl", "corpus.jsonl"]
    held_out = found.held_out
    assert held_out.collection.queries == ["book"] and len(held_out.source.examples) == 1 + 7
    order = np.concatenate(held_out.source.plan(0))
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(8, 6)).astype("float32")
    predictions = [{"embedding": vectors[row][None]} for row in order]
    ranking = np.argsort(-(vectors[1:] @ vectors[0]))
    wanted = measures.measure([ranking.tolist()], [{5: 2, 6: 1}])[0]
    wanted["mrr"] = 1.0 / (1 + min(ranking.tolist().index(answer) for answer in (5, 6)))
    assert found.task.answers.best_metric() in wanted
    assert held_out.evaluate(predictions) == pytest.approx(wanted) and 0.0 < wanted["ndcg_at_10"] < 1.0
    section = held_out.examine(predictions)[0]
    words = ("water", "road", "king", "river", "film", "war", "music")
    assert section.values == [
        {"texts": ["book"], "wanted": "war", "got": words[ranking[0]], "by": 1.0 - wanted["ndcg_at_10"]}
    ]
    with pytest.raises(ValueError, match="eval_steps: expected 0"):
        held_out.evaluate(predictions[:3])
    assert found.task.objective.losses({"embedding": tf.zeros((4, 1, 16))}, held_out.source.batch(0)) == {}


def make_identical(folder):
    """Each query is the text of a passage that has its id, and the answer is the next passage; the words are those of
    the vectors below.
    """
    folder.mkdir()
    (folder / "qrels").mkdir()
    words = ("water", "road", "king", "river")
    write(
        folder / "corpus.jsonl",
        [{"_id": f"d{number}", "title": "the", "text": word} for number, word in enumerate(words)],
    )
    write(folder / "queries.jsonl", [{"_id": f"d{number}", "text": words[number]} for number in (0, 2)])
    for name in ("train", "dev"):
        (folder / "qrels" / f"{name}.tsv").write_text("query-id\tcorpus-id\tscore\nd0\td1\t1\nd2\td3\t1\n")
    return folder


@pytest.mark.parametrize("task", ["retrieval", "splade"])
def test_a_query_that_is_a_passage_is_left_out_of_its_own_ranking(tmp_path, task):
    folder = make_identical(tmp_path / "set")
    config = make_config(task, options=SMALL, training={"batch_size": 4, "eval_batch_size": 4})
    held_out = resolve(config, Steps(train=False), data_dir=folder).held_out
    order = np.concatenate(held_out.source.plan(0))
    # Queries d0, d2, then passages: the query's own passage is the nearest, the answer the next one.
    vectors = np.array([[1, 0], [0, 1], [1, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]], np.float32)
    predictions = [
        {"embedding": vectors[row][None], "ids": np.array([[0, 1]]), "weights": vectors[row][None]} for row in order
    ]
    assert held_out.rankings(predictions) == [[1, 3, 2], [3, 1, 0]]
    found = held_out.evaluate(predictions)
    assert found["mrr"] == found["ndcg_at_10"] == found["recall_at_1"] == 1.0


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"train_on": "scores", "score_column": "s", "score_range": [0, 5]}, "table"),
        ({"score_column": "s"}, "collection"),
    ],
)
def test_a_correlation_cannot_choose_the_best_checkpoint_of_a_search(tmp_path, options, files):
    folder = make_collection(tmp_path / "set")
    path = write(
        tmp_path / "train.jsonl", [{"text": "a", "text_pair": "b", "s": 3}, {"text": "c", "text_pair": "d", "s": 1}]
    )
    train = {"train_file": path} if files == "table" else {}
    with pytest.raises(
        ValueError, match=r"score_column: expected a table with scores .* got .*qrels/dev\.tsv, in which texts"
    ):
        options = {"max_seq_length": 12, **options} | ({} if files == "table" else {"group_size": 2})
        resolve(make_config("retrieval", options=options, training={"batch_size": 4}), data_dir=folder, **train)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"loss": "cosent"}, "loss: cosent: expected options.train_on: scores with it, got pairs"),
        ({"loss": "kl", "group_size": 32}, "loss: kl: expected options.teacher_columns and negative_columns with it"),
        ({"loss": "triplet", "temperature": 0.2}, "temperature: expected a loss that reads it with it"),
        ({"teacher_columns": ["t"]}, r"teacher_columns: expected options.loss: margin_mse or kl \(not empty\) with it"),
        ({"label_column": "y", "negative_columns": ["no"]}, "label_column: expected no negative_columns"),
        ({"negative_columns": ["no", "no"]}, "expected different columns"),
        ({"matryoshka": [4, 4]}, "expected different numbers"),
        ({"matryoshka": [32]}, r"matryoshka: expected at most model\.hidden_size = 16, got 32"),
        ({"train_on": "texts", "loss": "triplet"}, "expected contrastive with options.train_on: texts"),
        (
            {"train_on": "texts", "negative_columns": ["no"]},
            r"negative_columns: expected options.train_on: pairs \(not texts\) with it",
        ),
        (
            {"loss": "triplet", "group_size": 32},
            r"row 1: expected a negative, which options\.loss: triplet compares .* \(4 such rows\)",
        ),
    ],
)
def test_options_without_a_meaning_are_refused(tmp_path, options, told):
    path = write(tmp_path / "train.jsonl", [{name: row[name] for name in ("text", "text_pair")} for row in ROWS])
    with pytest.raises(ValueError, match=told):
        resolve(config_of(**options), Steps(evaluate=False), train_file=path)


@pytest.mark.parametrize("task", ["retrieval", "reranking", "splade"])
def test_words_that_lower_casing_makes_the_same_are_said(tmp_path, task):
    words = "bán", "bạn", "bàn"
    rows = [f"ai {word} gì,tôi {word} sách,cho nhà {word}\n" for word in words]
    (tmp_path / "train.csv").write_text("text,text_pair,other\n" + "".join(rows), encoding="utf-8")
    data = load_task(make_config(task, options={"negative_columns": ["other"]})).data
    _, found = data.read_rows(data_files(train_file=tmp_path / "train.csv"), Steps(evaluate=False))
    [note] = found.notes
    assert note.startswith("lower-casing deletes accents and makes 3 different words the same as others: 22.2% of")
