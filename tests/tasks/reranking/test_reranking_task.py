"""Rerankers: queries with passages, losses, rankings, and published cross-encoders."""

import json
import os
import shutil

import numpy as np
import pytest
import yaml
from commands import printed_metrics, run_here
from made_finetuning import make_config, resolve

import official_bert
from official_bert.config import to_dict
from official_bert.interface.predictor import Predictor
from official_bert.models.interchange import formats
from official_bert.objectives import ranking_losses
from official_bert.search import measures
from official_bert.tasks.data import Steps


def config_of(**options):
    return make_config(
        "reranking", options={"max_seq_length": 16} | options, training={"batch_size": 4, "eval_batch_size": 4}
    )


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


ROWS = [
    {"text": "air", "text_pair": "water", "no": ["road", "king"]},
    {"text": "city", "text_pair": "river", "no": ["film"]},
    {"text": "city", "text_pair": "school", "no": ["film", "war"]},
]


@pytest.mark.parametrize("loss", ["pointwise", "pairwise", "listwise"])
def test_a_row_has_the_passages_of_a_query(tmp_path, loss):
    path = write(tmp_path / "train.jsonl", ROWS)
    found = resolve(config_of(negative_columns=["no"], loss=loss), Steps(evaluate=False), train_file=path)
    batch = found.train.batch(0)
    assert batch["input_ids"].shape[:2] == (4, 3) and batch["labels"][:3].tolist() == [[1, 0, 0]] * 3
    outputs = found.model(batch)
    present = batch["input_mask"].any(axis=-1)
    total, weight = found.task.objective.losses(outputs, batch)["loss"]
    wanted = getattr(ranking_losses, loss)(outputs["logits"], batch["labels"], present, batch["example_weights"])[0]
    assert (
        float(total) == pytest.approx(float(wanted))
        and float(weight) == 3.0
        and np.isfinite(total)
        and float(total) > 0.0
    )


def test_candidates_are_ranked_by_their_scores(tmp_path):
    path = write(tmp_path / "dev.jsonl", ROWS)
    held_out = resolve(config_of(negative_columns=["no"]), Steps(train=False), eval_file=path).held_out
    assert [(one.query, one.passages, one.grades) for one in held_out.candidates] == [
        ("air", ["road", "king", "water"], {2: 1}),
        ("city", ["film", "river", "war", "school"], {1: 1, 3: 1}),
    ]
    order = np.concatenate(held_out.source.plan(0))
    scores = np.array([5.0, 1.0, 3.0, 4.0, 3.0, 2.0, 3.0])
    found = held_out.evaluate([{"score": scores[row]} for row in order])
    wanted = measures.means(measures.measure([[0, 2, 1], [0, 1, 3, 2]], [{2: 1}, {1: 1, 3: 1}]))
    assert found == pytest.approx(wanted) and found["mrr_at_10"] == 0.5
    assert held_out.examine([{"score": scores[row]} for row in order])[0].values[0] == {
        "texts": ["air"],
        "wanted": "water",
        "got": "road",
        "by": pytest.approx(1 - 1 / np.log2(3)),
    }
    # An answer that scores like a wrong passage stands behind it.
    assert held_out.evaluate([{"score": 0.0} for _ in order])["mrr_at_10"] == pytest.approx(np.mean([1 / 3, 1 / 3]))


def test_labels_are_grades_in_evaluation(tmp_path):
    rows = [("air", "water", 2), ("air", "road", 0), ("air", "king", 1), ("city", "film", 0)]
    path = write(tmp_path / "dev.jsonl", [dict(zip(("text", "text_pair", "y"), row)) for row in rows])
    held_out = resolve(config_of(label_column="y"), Steps(train=False), eval_file=path).held_out
    assert [(one.passages, one.grades) for one in held_out.candidates] == [(["road", "water", "king"], {1: 2, 2: 1})]


def test_what_bm25_misses_of_a_collection_counts_as_not_found(tmp_path):
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    write(
        folder / "corpus.jsonl",
        [
            {"_id": str(number), "text": text}
            for number, text in enumerate(("the king", "a river", "king of air", "music"))
        ],
    )
    write(folder / "queries.jsonl", [{"_id": "q", "text": "king"}])
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\t2\t1\nq\t3\t1\n")
    held_out = resolve(config_of(candidates=2), Steps(train=False), data_dir=folder).held_out
    (one,) = held_out.candidates
    assert one.passages == ["the king", "king of air"] and one.grades == {1: 1} and one.missed == [1]
    found = held_out.evaluate([{"score": float(row)} for row in np.concatenate(held_out.source.plan(0))])
    assert found["recall_at_100"] == 0.5 and found["mrr_at_10"] == 1.0


@pytest.mark.parametrize(("most", "negatives"), [(0, ["king of music", "the king", "music"]), (1, ["king of music"])])
def test_a_collection_that_judges_no_passage_irrelevant_trains_on_what_bm25_finds(tmp_path, most, negatives, caplog):
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    write(
        folder / "corpus.jsonl",
        [
            {"_id": str(number), "text": text}
            for number, text in enumerate(("the king", "king king", "king of music", "music"))
        ],
    )
    write(folder / "queries.jsonl", [{"_id": "1", "text": "king king"}])  # the query is passage 1
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n1\t0\t1\n")
    from official_bert.tasks.loading import load_task

    rows = load_task(config_of(most_negatives=most)).data.read_file(str(folder / "qrels/train.tsv"), "train")
    (answer,) = rows.text_pair
    assert (
        answer == "the king" and sorted(rows.choices[0]) == sorted(set(negatives) - {answer}) and "BM25" in caplog.text
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, r"train\.jsonl: row 1: expected a passage that does not answer the query \(3 such rows\)"),
        ({"label_column": "y", "negative_columns": ["no"]}, "expected no negative_columns"),
        ({"candidates": 0}, "candidates: expected at least 1"),
        ({"negative_columns": ["text"]}, "expected different columns"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path, options, told):
    with pytest.raises(ValueError, match=told):
        resolve(config_of(**options), Steps(evaluate=False), train_file=write(tmp_path / "train.jsonl", ROWS))


@pytest.mark.slow
def test_texts_are_ranked_by_a_reranker_a_published_one_and_by_vectors(tmp_path, classifier, small_config, golden):
    task = official_bert.tasks.loading.load_task(make_config("reranking", options={"max_seq_length": 16}))
    model = task.build_model()
    from official_bert.config import save_config
    from official_bert.models import checkpoints

    os.makedirs(tmp_path / "run")
    shutil.copy(task.config.tokenizer.vocab_file, tmp_path / "run" / "vocab.txt")
    save_config(task.config, str(tmp_path / "run" / "config.yaml"))
    checkpoints.weights_checkpoint(model).write(str(tmp_path / "run" / "ckpt-1"))
    texts = ["a river and a road", "the king", "war"]
    ranked = Predictor(str(tmp_path / "run")).rank("the king", texts)
    rows = [
        task.tokenizer.convert_tokens_to_ids(["[CLS]", "the", "king", "[SEP]", *task.tokenizer.tokenize(text), "[SEP]"])
        for text in texts
    ]
    for one in ranked:
        ids = np.array([[rows[one["index"]]]], np.int32)
        segments = (np.arange(ids.shape[-1]) >= 4).astype(np.int32)[None, None]
        wanted = model({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments})["logits"]
        assert one["score"] == pytest.approx(float(wanted[0, 0]), abs=1e-5) and one["text"] == texts[one["index"]]
    assert [one["score"] for one in ranked] == sorted((one["score"] for one in ranked), reverse=True)
    formats.write(formats.read(str(tmp_path / "run")), "hugging_face", str(tmp_path / "published"))
    with open(tmp_path / "published" / "config.json", encoding="utf-8") as file:
        values = json.load(file)
    assert values["architectures"] == ["BertForSequenceClassification"] and len(values["id2label"]) == 1
    published = Predictor(str(tmp_path / "published"), pairs=True, vocab_file=task.config.tokenizer.vocab_file)
    assert [one["index"] for one in published.rank("the king", texts)] == [one["index"] for one in ranked]
    with pytest.raises(ValueError, match="expected a model that scores two texts"):
        Predictor(str(tmp_path / "published"), vocab_file=task.config.tokenizer.vocab_file).rank("the king", texts)
    by_vectors = Predictor(str(tmp_path / "run"), head="embeddings").rank("the king", texts)
    assert by_vectors[0]["index"] == 1 and by_vectors[0]["score"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
def test_a_reranker_is_trained_evaluated_exported_and_asked_by_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["air", "water", "arab", "arch", "road", "family", "school", "church", "city", "river", "music", "film"]
    rng = np.random.default_rng(0)
    for name, count in (("train", 200), ("dev", 30)):  # the answer has the word of the query
        rows = []
        for number in range(count):
            word, *others = rng.choice(words, 4, replace=False).tolist()
            rows.append(
                {
                    "text": f"the {word} {number}" if name == "train" else f"its {word} {number}",
                    "text_pair": f"a {word}",
                    "negatives": [f"a {other}" for other in others],
                }
            )
        write(tmp_path / f"{name}.jsonl", rows)
    config = make_config(
        "reranking",
        options={"max_seq_length": 16, "negative_columns": ["negatives"]},
        optimizer={"learning_rate": 3e-3},
        training={"batch_size": 16, "eval_batch_size": 32, "epochs": 30.0},
        model={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(to_dict(config)))
    done = run_here(
        "-m",
        "official_bert.run_finetuning",
        "--config=run.yaml",
        "--data_dir=.",
        "--output_dir=run",
        "--cache_dir=",
        "--predict_file=dev.jsonl",
    )
    assert done.returncode == 0, done.stderr
    measured = printed_metrics(done.stdout)["mrr_at_10"]
    assert measured > 0.9, done.stdout  # chance: 0.52
    assert run_here("-m", "official_bert.run_export", "--checkpoint=run", "--output=models/reranker").returncode == 0
    ranked = Predictor("models/reranker").rank("the river", ["a road", "a river", "a film"])
    assert ranked[0]["text"] == "a river"
    asked = run_here("-m", "official_bert.run_predict", "--task=reranking", "--model=run", "the river\ta river")
    assert abs(float(asked.stdout.splitlines()[1]) - ranked[0]["score"]) < 1e-3, asked.stdout + asked.stderr
    convert = ("tools/convert_checkpoint.py", "--from=ours", "--to=hugging_face", "--input=run", "--output=hf")
    assert run_here(*convert).returncode == 0
    asked = run_here("-m", "official_bert.run_predict", "--task=reranking", "--model=hf", "the river\ta river")
    assert abs(float(asked.stdout.splitlines()[1]) - ranked[0]["score"]) < 1e-3, asked.stdout + asked.stderr
    again = run_here(
        "-m",
        "official_bert.run_finetuning",
        "--task=reranking",
        "--init_checkpoint=hf",
        "--eval_file=dev.jsonl",
        "--nodo_train",
        "--output_dir=again",
        "--set=options.negative_columns=[negatives]",
        "--set=options.max_seq_length=16",
    )
    assert printed_metrics(again.stdout)["mrr_at_10"] == measured, again.stdout + again.stderr
