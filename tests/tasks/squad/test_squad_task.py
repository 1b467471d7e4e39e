"""Question answering as a task: sources, losses, answers from logits, raw text, bad input."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from oracles import squad as oracle

from official_bert.config import Config, ModelConfig, TokenizerConfig, TrainingConfig
from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles, Steps
from official_bert.tasks.loading import load_task
from official_bert.tasks.squad.task import Task

SMALL = ModelConfig(
    vocab_size=3000,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=96,
)


@pytest.fixture(scope="module", params=[1, 2])
def golden_squad(request, golden):
    """Returns (2018's results, its logits, the questions of the same file with the same settings)."""
    wanted = json.loads((golden / f"squad_v{request.param}_features.json").read_text(encoding="utf-8"))
    options = {
        key: wanted[key]
        for key in (
            "max_seq_length",
            "doc_stride",
            "max_query_length",
            "n_best_size",
            "max_answer_length",
            "null_score_diff_threshold",
        )
    }
    task = make_task(golden, version_2_with_negative=request.param == 2, answer_alignment=2018, **options)
    files = DataFiles(eval_file=str(golden / f"squad_v{request.param}.json"))
    questions = task.data.resolve(files, Steps(train=False, predict=True)).tests
    return wanted, dict(np.load(golden / f"squad_v{request.param}_logits.npz")), questions


def make_task(golden, batch_size=8, **options):
    config = Config(
        task="squad",
        model=SMALL,
        tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")),
        training=TrainingConfig(batch_size=batch_size, eval_batch_size=batch_size, epochs=1.0),
        options=options,
    )
    task = load_task(config)
    assert isinstance(task, Task)
    return task


def trained_on(golden, train_file, eval_file="", cache_dir="", allow_same_data=False, **options):
    """Returns the task with its training data."""
    files = DataFiles(
        train_file=str(train_file), eval_file=str(eval_file), cache_dir=str(cache_dir), allow_same_data=allow_same_data
    )
    return make_task(golden, **{"max_seq_length": 96, **options}).data.resolve(files, TRAIN_AND_EVALUATE)


def rows_of(questions, logits):
    """Returns 2018's logits as predictions in the order of the batches."""
    source = questions.source
    return [
        {name: logits[name][index] for name in ("start_logits", "end_logits")}
        for index in np.concatenate(source.plan(0))
    ]


def test_prediction_files_equal_those_of_2018(golden_squad, tmp_path):
    wanted, logits, questions = golden_squad
    paths = questions.write(rows_of(questions, logits), str(tmp_path))
    written = {path.rpartition("/")[2]: json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in paths}
    assert written["predictions.json"] == wanted["predictions"]
    for key, answers in wanted["nbest"].items():
        assert [answer["text"] for answer in written["nbest_predictions.json"][key]][: len(answers)] == [
            answer["text"] for answer in answers
        ]
        assert list(written["nbest_predictions.json"][key][0]) == ["text", "probability", "start_logit", "end_logit"]
    assert ("null_odds.json" in written) == ("null_odds" in wanted)
    if "null_odds" in wanted:
        assert written["null_odds.json"] == pytest.approx(wanted["null_odds"], rel=1e-5)


def test_metrics_count_right_answers(golden_squad):
    _, logits, questions = golden_squad
    metrics = questions.evaluate(rows_of(questions, logits))
    decoded = questions.decode(rows_of(questions, logits))
    right = dict.fromkeys(decoded, 0)
    gold = {
        row["id"]: [answer["text"] for answer in row["answers"]]
        for article in questions.file.articles
        for paragraph in article["paragraphs"]
        for row in paragraph["qas"]
    }
    for key, value in decoded.items():
        right[key] = value.prediction in (gold[key] or [""])
    assert metrics["exact_match"] >= np.mean(list(right.values())) - 1e-9
    assert questions.source.batches_per_epoch * 8 >= len(logits["unique_id"])


def test_an_evaluation_that_stops_early_measures_what_it_has_seen(golden_squad):
    _, logits, questions = golden_squad
    rows = rows_of(questions, logits)
    half = rows[: len(rows) // 2]
    assert 0 < len(questions.decode(half)) < len(questions.decode(rows))
    assert set(questions.evaluate(half)) == set(questions.evaluate(rows))
    owners = [questions.features[index].example_index for index in np.concatenate(questions.source.plan(0))]
    one = next(index for index, owner in enumerate(owners) if owners.count(owner) > 1)  # a window of several
    with pytest.raises(
        ValueError, match=r"training\.eval_steps: expected enough batches for all rows of at least one text"
    ):
        questions.evaluate([None] * one + rows[one : one + 1])


def test_an_evaluation_that_stops_early_answers_the_first_questions_not_the_shortest_windows(golden, tmp_path):
    row = {
        "context": "the atlas and the ferry " * 7,
        "question": "What?",
        "answers": {"text": ["atlas"], "answer_start": [4]},
    }
    path = tmp_path / "dev.jsonl"
    path.write_text("\n".join([json.dumps(row)] * 6))
    task = make_task(golden, max_seq_length=40, doc_stride=8, max_query_length=10)
    early = load_task(
        dataclasses.replace(task.config, training=dataclasses.replace(task.config.training, eval_steps=1))
    )
    questions = early.data.resolve(DataFiles(eval_file=str(path)), Steps(train=False)).held_out
    logits = {name: np.zeros(40, np.float32) for name in ("start_logits", "end_logits")}
    assert list(questions.decode([logits] * 8)) == ["0", "1"]  # their windows, 4 each, are the first batch of 8 rows


def test_losses_of_bucketed_rows_do_not_depend_on_padding(golden):
    data = trained_on(golden, golden / "squad_v1.json", max_seq_length=96, doc_stride=32, max_query_length=24)
    task, model = data.task, data.model
    batch = {key: tf.constant(value) for key, value in data.train.batch(0).items()}
    longer = {
        key: tf.pad(value, [[0, 0], [0, 96 - value.shape[1]]]) if value.shape.rank == 2 else value
        for key, value in batch.items()
    }
    short, long = (task.objective.losses(model(dict(part), training=False), part) for part in (batch, longer))
    for name in ("start", "end"):
        assert float(short[name][0]) == pytest.approx(float(long[name][0]), rel=1e-5)
        assert float(short[name][1]) == 8.0
    # Untrained, the mean of both losses is about the logarithm of the length.
    lengths = np.log(batch["input_mask"].numpy().sum(axis=1)).mean()
    assert sum(float(short[name][0]) for name in short) / 8 == pytest.approx(lengths, rel=0.1)


def test_batches_are_those_of_the_specification(golden):
    data = trained_on(
        golden, golden / "squad_v1.json", max_seq_length=96, doc_stride=32, max_query_length=24, buckets=[96]
    )
    spec = data.task.data.batch_spec(8)
    batch = data.train.batch(3)
    assert {key: (value.shape, value.dtype) for key, value in batch.items()} == {
        key: (tuple(value.shape), value.dtype.as_numpy_dtype) for key, value in spec.items()
    }


def test_training_rows_come_from_the_cache_the_second_time(golden, tmp_path):
    rows = []
    for _ in range(2):
        data = trained_on(
            golden, golden / "squad_v1.json", cache_dir=tmp_path, max_seq_length=96, doc_stride=32, max_query_length=24
        )
        rows.append(data.train.batch(0))
        (stored,) = tmp_path.iterdir()
        assert stored.suffix == ".npz"
    for key in rows[0]:
        np.testing.assert_array_equal(rows[0][key], rows[1][key])


def test_answers_to_raw_text_are_slices_of_the_context(golden):
    task = make_task(golden, max_seq_length=40, doc_stride=8, max_query_length=10)
    context = "  The quartermaster repainted the café's\u00a0espresso machine, although nobody had asked. " * 3
    rows = [{"question": "What was repainted?", "context": context}, {"question": "Who?", "context": ""}]
    features = oracle.encode(task, rows)
    assert len([feature for feature in features if feature["row"] == 0]) > 2
    model = task.build_model()
    predictions = [
        {
            name: value.numpy()[0]
            for name, value in model(
                {key: feature[key][None] for key in ("input_ids", "input_mask", "segment_ids")}
            ).items()
        }
        for feature in features
    ]
    first, second = oracle.decode(task, rows, features, predictions)
    assert (
        first["answer"] == context[first["start"] : first["end"]] and first["answer"].strip() == first["answer"] != ""
    )
    assert (second["answer"], second["start"], second["end"], second["score"]) == ("", 0, 0, 0.0)
    assert not first["truncated"]


def test_the_best_span_of_raw_text_is_where_its_logits_are_highest(golden):
    context = "Señora Núñez misplaced the harbour ledger."
    task = make_task(golden, max_seq_length=60, max_query_length=10)
    (feature,) = oracle.encode(task, [{"question": "Who misplaced it?", "context": context}])
    begin, end = context.index("Núñez"), context.index("Núñez") + 5
    start_logits, end_logits = np.zeros((2, len(feature["input_ids"])))
    start_logits[list(feature["starts"]).index(begin)] = 5.0
    end_logits[list(feature["ends"]).index(end)] = 4.0
    row = {"question": "Who misplaced it?", "context": context}
    (answer,) = oracle.decode(task, [row], [feature], [{"start_logits": start_logits, "end_logits": end_logits}])
    assert answer == {
        "answer": "Núñez",
        "start": begin,
        "end": end,
        "score": 9.0,
        "null_score": 0.0,
        "truncated": False,
    }
    negative = make_task(golden, max_seq_length=60, max_query_length=10, version_2_with_negative=True)
    start_logits[0] = 20.0
    (nothing,) = oracle.decode(negative, [row], [feature], [{"start_logits": start_logits, "end_logits": end_logits}])
    assert (nothing["answer"], nothing["null_score"]) == ("", 20.0)


def broken(tmp_path, change):
    """Writes a file of one question, with changes."""
    values = {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": "A cat sat.",
                        "qas": [{"id": "q1", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 2}]}],
                    }
                ]
            }
        ]
    }
    change(values["data"][0]["paragraphs"][0])
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(values), encoding="utf-8-sig")
    return path


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda p: p.pop("context"), r"data\[0\]\.paragraphs\[0\]: 'context' is missing"),
        (lambda p: p["qas"].append(p["qas"][0]), r"qas\[1\]: id 'q1' is that of .*qas\[0\] too"),
        (lambda p: p["qas"][0].pop("id"), r"qas\[0\]: 'id' is missing"),
        (lambda p: p["qas"][0].update(question=3), r"qas\[0\]\.question: expected str, got '3'"),
        (
            lambda p: p["qas"][0]["answers"].append({"text": "A cat", "answer_start": 0}),
            r"\(q1\): expected exactly 1 answer in training data, got 2; is this a development set\?",
        ),
        (
            lambda p: p["qas"][0].update(answers=[]),
            r"got 0; a file with questions that have none is read with version_2",
        ),
        (lambda p: p["qas"][0]["answers"][0].update(text="dog"), r"no question in this file, all were skipped"),
    ],
)
def test_broken_files_are_named(golden, tmp_path, change, wanted):
    with pytest.raises(ValueError, match=wanted):
        trained_on(golden, broken(tmp_path, change))


def test_what_is_no_json_and_what_is_missing_are_named(golden, tmp_path):
    (tmp_path / "bad.json").write_text('{"data": [')
    with pytest.raises(
        ValueError, match=r"bad\.json:1: not valid JSON: .* at column 11; expected an object a line, or a list of"
    ):
        trained_on(golden, tmp_path / "bad.json")
    with pytest.raises(ValueError, match=r"none\.json: no such file"):
        trained_on(golden, tmp_path / "none.json")
    with pytest.raises(
        ValueError,
        match=r"expected training data: --train_file, or one of train-v1\.1\.json in --data_dir \(not given\)",
    ):
        trained_on(golden, "")
    with pytest.raises(ValueError, match=r"max_seq_length: expected more than max_query_length \+ 3 = 67, got 60"):
        trained_on(golden, golden / "squad_v1.json", max_seq_length=60)
    with pytest.raises(ValueError, match="expected at most the model's 96 positions"):
        trained_on(golden, golden / "squad_v1.json", max_seq_length=97)


def test_skipped_and_cut_questions_and_a_dev_set_used_for_training_are_told(golden, tmp_path, caplog):
    def change(paragraph):
        paragraph["qas"] += [
            {"id": f"q{number}", "question": "Who " * 70, "answers": [{"text": "dog", "answer_start": 2}]}
            for number in range(2, 7)
        ]
        paragraph["qas"].append(
            {"id": "long", "question": "Who " * 70, "answers": [{"text": "cat", "answer_start": 2}]}
        )

    path = broken(tmp_path, change)
    with pytest.raises(
        ValueError, match=r"2 of its 2 questions are in .* too \(q1 \.\.\.\) \(--allow_same_data allows it\)"
    ):
        trained_on(golden, path, eval_file=path)
    source = trained_on(golden, path, eval_file=path, allow_same_data=True).train
    assert len(source.examples) == 2
    assert (
        "5 questions skipped, whose answer is not in the context: q2 ('dog'); q3 ('dog'); q4 ('dog'); ..."
        in caplog.text
    )
    assert "1 questions are longer than max_query_length = 64 tokens" in caplog.text
    assert "2 of its 2 questions are in" in caplog.text


def test_questions_are_the_same_by_their_text_and_context_and_not_by_their_ids(golden, tmp_path):
    def write(name, context, **more):
        answers = {"text": ["cat"], "answer_start": [context.index("cat")]}
        row = {"question": "Who sat there?", "context": context, "answers": answers, **more}
        (tmp_path / name).write_text(json.dumps(row) + "\n")  # without an id, "0"
        return tmp_path / name

    train = write("train.jsonl", "The cat sat on the mat.")
    assert trained_on(golden, train, eval_file=write("other.jsonl", "The dog and the cat.")).held_out is not None
    with pytest.raises(
        ValueError, match=r"1 of its 1 questions are in .*renamed\.jsonl too \(0 \.\.\.\) \(--allow_same_data"
    ):
        trained_on(golden, train, eval_file=write("renamed.jsonl", "The cat sat on the mat.", id="another"))


def test_a_test_set_without_answers_is_predicted_but_not_evaluated(golden, tmp_path):
    path = broken(tmp_path, lambda paragraph: paragraph["qas"][0].pop("answers"))
    files, task = (
        DataFiles(train_file=str(golden / "squad_v1.json"), eval_file=str(path)),
        make_task(golden, max_seq_length=96),
    )
    data = task.data.resolve(files, Steps(predict=True))
    assert data.held_out is None and data.tests.source.batches_per_epoch == 1
    assert data.notes[0] == f"{path} has no answers: nothing is evaluated"
    assert [": labels of " in note for note in data.notes] == [False, True]
    with pytest.raises(ValueError, match=r"task squad: no evaluation data given: .*broken\.json has no answers"):
        task.data.resolve(files, Steps(train=False))


@pytest.mark.parametrize("version_2", [False, True])
def test_rows_without_answers_are_predicted_but_not_evaluated(golden, tmp_path, version_2):
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"question": "Who sat?", "context": "A cat sat."}) + "\n")
    task = make_task(golden, max_seq_length=96, version_2_with_negative=version_2)
    tests = task.data.resolve(DataFiles(predict_file=str(path)), Steps(train=False, evaluate=False, predict=True)).tests
    assert not tests.have_gold_answers and [example.qas_id for example in tests.file.examples] == ["0"]
    with pytest.raises(ValueError, match=r"no evaluation data given: .*test\.jsonl has no answers"):
        task.data.resolve(DataFiles(eval_file=str(path)), Steps(train=False))


def test_a_threshold_for_no_answer_where_every_question_is_answered_is_refused_before_training(golden):
    task = make_task(golden, max_seq_length=96, null_score_diff_threshold=2.0)
    with pytest.raises(
        ValueError,
        match=r"null_score_diff_threshold: expected options\.version_2_with_negative: true with it, got 2\.0",
    ):
        task.data.check(TRAIN_AND_EVALUATE)
    task.data.check(Steps(train=False))  # a run that has it can be used


def test_questions_to_evaluate_on_have_answers_before_training_begins(golden, tmp_path):
    def change(paragraph):
        paragraph["qas"].append({"id": "q2", "question": "Who stood?", "answers": [], "is_impossible": True})

    path = broken(tmp_path, change)
    with pytest.raises(
        ValueError,
        match=r"broken\.json: question 'q2': expected gold answers to evaluate against, got none; "
        "a file with questions that have none is read with version_2_with_negative",
    ):
        trained_on(golden, golden / "squad_v1.json", eval_file=path)
    files = DataFiles(eval_file=str(path))
    assert (
        make_task(golden, max_seq_length=96, version_2_with_negative=True)
        .data.resolve(files, Steps(train=False))
        .held_out
        is not None
    )


def test_published_files_are_found_in_a_folder(golden, tmp_path):
    (tmp_path / "train-v1.1.json").write_bytes((golden / "squad_v1.json").read_bytes())
    task = make_task(golden, max_seq_length=96, doc_stride=32, max_query_length=24, dev_share=0.0)
    data = task.data.resolve(DataFiles(data_dir=str(tmp_path)), TRAIN_AND_EVALUATE)
    assert len(data.train.examples) == 207 and data.held_out is None
