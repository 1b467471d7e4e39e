"""Tagging of words as a task: rows, losses, whole-text decoding, frozen features, prediction files, bad input."""

import json
import pathlib
import random

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf
from oracles.answers import answers_of
from seqeval.metrics.sequence_labeling import get_entities

from official_bert.config import Config, ModelConfig, OptimizerConfig, TokenizerConfig, TrainingConfig
from official_bert.data.tagged import chunk_tags
from official_bert.layers.relatives import crf
from official_bert.runs import whole_run
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks import answering
from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles, Steps
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.tasks.tagging import conll
from official_bert.tasks.tagging.features import gather_words
from official_bert.training.machines.cluster import Placement

SMALL = ModelConfig(
    vocab_size=3000,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.2,
)
PEOPLE, PLACES = ("surveyor", "pilot", "keeper", "glassblower"), ("Brno", "parish", "harbour")
OTHERS = ("the", "while", "it", "rained", "borrowed", "in", "atlas", "three")


def write_conll(path, count, seed=0, separator="\t"):
    """Writes sentences in which each word alone tells its tag, except in entities of two words."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        for _ in range(draw.randint(3, 10)):
            kind = draw.random()
            if kind < 0.15:
                lines += [f"{draw.choice(PEOPLE)}{separator}B-PER", f"{draw.choice(PEOPLE)}{separator}I-PER"]
            elif kind < 0.3:
                lines.append(f"{draw.choice(PLACES)}{separator}B-LOC")
            else:
                lines.append(f"{draw.choice(OTHERS)}{separator}O")
        lines.append("")
    path.write_text("\n".join(lines) + "\n")
    return path


def make_task(golden, training=None, learning_rate=5e-3, **options):
    config = Config(
        task="ner",
        model=SMALL,
        tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")),
        optimizer=OptimizerConfig(learning_rate=learning_rate, schedule="constant"),
        training=TrainingConfig(
            **{"batch_size": 16, "eval_batch_size": 16, "epochs": 1.0, "log_every": 1000, **(training or {})}
        ),
        options={"max_seq_length": 32, "doc_stride": 8, **options},
    )
    return load_task(config)


def data_files(files):
    return DataFiles(**{name: str(value) for name, value in files.items()})


def resolve(golden, files, steps=TRAIN_AND_EVALUATE, **settings):
    return make_task(golden, **settings).data.resolve(data_files(files), steps)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ner")
    return {
        "train_file": write_conll(folder / "train.conll", 200),
        "eval_file": write_conll(folder / "dev.conll", 40, seed=1),
        "predict_file": write_conll(folder / "test.conll", 20, seed=2),
    }


def test_labels_come_from_the_training_data_in_the_models_scheme(golden, files):
    for scheme, count in (("iob2", 5), ("iob1", 5), ("iobes", 9)):
        data = resolve(golden, files, scheme=scheme, max_seq_length=64)  # whole sentences
        task, source = data.task, data.train
        assert (
            task.config.options["labels"] == list(chunk_tags.label_list(["PER", "LOC"], scheme))
            and len(task.options.labels) == count
        )
        sentence = conll.read_sentences(str(files["train_file"])).sentences[0]
        row = source.examples[0]
        assert [task.options.labels[tag] for tag in row["tags"][row["tag_mask"] > 0]] == chunk_tags.convert_tags(
            sentence.tags, scheme
        )


@pytest.mark.parametrize("crf_on", [False, True])
def test_losses_of_bucketed_rows_do_not_depend_on_padding_or_filler_rows(golden, files, crf_on):
    data = resolve(golden, files, crf=crf_on, dropout=0.0)
    task, source, model = data.task, data.train, data.model
    batch = {key: tf.constant(value) for key, value in source.batch(0).items()}
    wider = {
        key: tf.pad(value, [[0, 2], [0, 5]]) if value.shape.rank == 2 else tf.pad(value, [[0, 2]])
        for key, value in batch.items()
    }
    total, weight = task.objective.losses(model(dict(batch), training=False), batch)["loss"]
    again, weight_again = task.objective.losses(model(dict(wider), training=False), wider)["loss"]
    assert float(total) == pytest.approx(float(again), rel=1e-4) and float(weight) == float(weight_again)
    assert float(weight) == batch["tag_mask"].numpy().sum()
    # By hand: transitions begin at 0, so that a CRF's loss begins as that of a softmax.
    logits = np.asarray(model(dict(batch), training=False)["logits"])
    chances = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    picked = np.take_along_axis(chances, batch["tags"].numpy()[..., None], axis=-1)[..., 0]
    assert float(total) == pytest.approx(-(picked * batch["tag_mask"].numpy()).sum(), rel=1e-4)


def test_batches_are_those_of_the_specification(golden, files):
    data = resolve(golden, files, buckets=[32])
    batch, spec = data.train.batch(0), data.task.data.batch_spec(16)
    assert {key: (value.shape, value.dtype) for key, value in batch.items()} == {
        key: (tuple(value.shape), value.dtype.as_numpy_dtype) for key, value in spec.items()
    }


def test_tags_of_a_long_text_are_the_best_path_of_all_of_it(golden, tmp_path):
    path = tmp_path / "long.conll"
    path.write_text("\n".join(f"{word}\tO" for word in OTHERS * 10) + "\n")
    data = resolve(
        golden, {"eval_file": path}, Steps(train=False), crf=True, constrain=True, labels=["O", "B-X", "I-X"]
    )
    task, part = data.task, data.held_out
    rng = np.random.default_rng(0)
    assert len(part.features) > 4
    emissions = rng.normal(size=(80, 3)).astype(np.float32)
    chain = crf.Scores(*(rng.normal(size=shape).astype(np.float32) for shape in ((3, 3), (3,), (3,))))
    rows = []
    for index in np.concatenate(part.source.plan(0)):
        feature = part.features[index]
        logits = rng.normal(size=(32, 3)).astype(np.float32)
        logits[feature.positions] = emissions[feature.words]
        rows.append(
            {"logits": logits, "transitions": chain.transitions, "start_scores": chain.start, "end_scores": chain.end}
        )
    (tags,) = part.tags(rows)
    legal = chunk_tags.legal_transitions(task.options.labels, "iob2")
    wanted = crf.best_path(emissions[None], np.ones((1, 80), bool), crf.constrain(chain, legal))[0]
    assert [task.options.labels.index(tag) for tag in tags] == np.asarray(wanted).tolist()
    assert chunk_tags.convert_tags(tags, "iob2") == tags


def test_documents_are_rows_and_sentences_are_written(golden, tmp_path):
    path = tmp_path / "docs.conll"
    path.write_text("a O\nb O\n\nc O\n\n-DOCSTART- O\n\nd O\n")
    only = Steps(train=False, evaluate=False, predict=True)
    tests = resolve(golden, {"predict_file": path}, only, document_context=True, labels=["O", "B-X", "I-X"]).tests
    source = tests.source
    assert [int(row["tag_mask"].sum()) for row in source.examples] == [3, 1]
    logits = np.zeros((32, 3), np.float32)
    logits[1, 1] = logits[3, 1] = 1.0  # a and c
    (written,) = tests.write(
        [
            {"logits": logits} if length > 3 else {"logits": np.zeros((32, 3))}
            for length in source.lengths[np.concatenate(source.plan(0))]
        ],
        str(tmp_path),
    )
    assert pathlib.Path(written).read_text() == "a\tO\tB-X\nb\tO\tO\n\nc\tO\tB-X\n\n-DOCSTART-\tO\tO\n\nd\tO\tO\n\n"


def test_chains_and_entities_end_at_the_sentences_of_a_document_in_training_evaluation_and_the_exported_graph(
    golden, tmp_path
):
    path = write_conll(tmp_path / "document.conll", 12, seed=3)
    with pytest.raises(
        ValueError,
        match=r"document\.conll: expected lines -DOCSTART- between the documents for options\.document_context",
    ):
        resolve(golden, {"train_file": path}, Steps(evaluate=False), document_context=True)
    path.write_text("-DOCSTART- O\n\n" + path.read_text())
    options = {
        "crf": True,
        "document_context": True,
        "doc_stride": 8,
        "labels": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    }
    data = resolve(golden, {"train_file": path, "eval_file": path, "allow_same_data": True}, **options)
    task, model, part = data.task, data.model, data.held_out
    rng = np.random.default_rng(0)
    for variable in model.crf.trainable_weights:
        variable.assign(rng.normal(size=variable.shape) / 100)  # the rate is 100
    found = part.tags(answering.predict(task, model, part.source))
    scores = crf.Scores(*(np.asarray(score) for score in model.crf.scores()))
    rows = part.source.in_order(answering.predict(task, model, part.source))
    logits = gather_words(
        part.features, [row["logits"] for row in rows], [sum(len(sentence.words) for sentence in part.sentences)]
    )
    ends = np.cumsum([len(sentence.words) for sentence in part.sentences])
    assert len(part.features) > 3 and len(part.texts) == 1 and len(found) == 12
    for tags, first, last in zip(found, [0, *ends], ends):
        wanted = crf.best_path(logits[0][None, first:last], np.ones((1, last - first), bool), scores)[0]
        assert [task.options.labels.index(tag) for tag in tags] == np.asarray(wanted).tolist()
    starts = sum(int(row["sentence_starts"].sum()) for row in data.train.examples)
    assert starts == 12 and "sentence_starts" in task.data.batch_spec(2)
    text = "\n".join(" ".join(sentence.words) for sentence in part.sentences)
    served = make_served_model(task, model, ServingOptions(pretokenized=True)).answer_text(
        {"text": tf.constant([text, ""])}
    )
    wanted = [
        (kind, " ".join(sentence.words[first : last + 1]))
        for sentence, tags in zip(part.sentences, found)
        for kind, first, last in get_entities(tags)
    ]
    assert len(wanted) > 10
    kinds, entities = (served[name].numpy()[0] for name in ("types", "entities"))
    assert [(kind.decode(), entity.decode()) for kind, entity in zip(kinds, entities)] == wanted


def test_a_pretokenized_text_has_the_words_of_training_also_odd_ones(golden, tmp_path):
    # words that normalise to nothing, that hold a no-break space, a deleted character between two pieces
    draw = random.Random(1)
    odd = ("\u200b", "\u00ad", "\u0301", "x\u00a0y", "\u5317\u200b\u4eac", "three\u3000in")
    words = [
        [draw.choice(odd if draw.random() < 0.4 else OTHERS + PLACES) for _ in range(draw.randint(1, 40))]
        for _ in range(12)
    ]
    path = tmp_path / "odd.txt"
    path.write_text("\n".join("".join(f"{word}\n" for word in sentence) for sentence in words))
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    data = resolve(golden, {"predict_file": path}, Steps(train=False, evaluate=False, predict=True), labels=labels)
    tags = data.tests.tags(answering.predict(data.task, data.model, data.tests.source))
    served = make_served_model(data.task, data.model, ServingOptions(pretokenized=True))
    found = served.answer_text({"text": tf.constant(["\t".join(sentence) for sentence in words])})
    for row, (sentence, names) in enumerate(zip(words, tags, strict=True)):
        starts = np.cumsum([0, *(len(word) + 1 for word in sentence)])
        wanted = [(kind, starts[first], starts[last + 1] - 1) for kind, first, last in get_entities(names)]
        columns = [found[name].numpy()[row].tolist() for name in ("types", "starts", "ends")]
        got = [(kind.decode(), start, end) for kind, start, end in zip(*columns) if kind]
        assert [(kind, start) for kind, start, _ in got] == [(kind, start) for kind, start, _ in wanted]
        # without a deleted last character
        assert all(end - 1 <= stop <= end for (_, _, stop), (_, _, end) in zip(got, wanted))
    assert found["types"].shape[1] > 5


@pytest.mark.slow  # test_run_finetuning.py fine-tunes a tagger, runs/test_runs.py one on frozen features
@pytest.mark.parametrize(
    ("epochs", "options"),
    [
        pytest.param(6.0, {"crf": True, "constrain": True}, id="fine-tuned"),
        pytest.param(
            20.0, {"features": "weighted_sum", "feature_layers": 2, "lstm_size": 32, "crf": True}, id="frozen features"
        ),
    ],
)
def test_a_run_learns_tags_from_words_and_its_folder_answers(golden, files, tmp_path, epochs, options):
    task, known = (
        make_task(golden, {"epochs": epochs}, 3e-3, **options),
        data_files({**files, "cache_dir": tmp_path / "cache"}),
    )
    trained = whole_run.train(task, known, str(tmp_path / "run"), Placement(), report=lambda _: None)
    metrics = trained.metrics
    assert metrics["f1"] > 0.9 and metrics["tag_accuracy"] > 0.9
    restored, model = restore_for_inference(str(tmp_path / "run"))
    again = restored.data.resolve(known, Steps(train=False, evaluate=False, predict=True))
    again.model.set_weights(model.get_weights())
    (path,) = again.tests.write(answering.predict(restored, again.model, again.tests.source), str(tmp_path))
    rows = [line.split("\t") for line in pathlib.Path(path).read_text().splitlines() if line]
    assert np.mean([gold == found for _, gold, found in rows]) > 0.9
    if "features" in options:
        assert len(list((tmp_path / "cache").iterdir())) == 3  # words of the training, evaluation and test data
        assert np.allclose(model.encoder.get_weights()[0], trained.resolved.model.encoder.get_weights()[0])
    texts = [{"text": "it rained in Brno while the pilot keeper borrowed it"}, {"text": ""}]
    answers = answers_of(restored, model, texts)
    assert answers[0]["entities"] == ["Brno", "pilot keeper"] and answers[0]["types"] == ["LOC", "PER"]
    assert (answers[0]["starts"], answers[0]["ends"]) == ([13, 28], [17, 40]) and answers[1]["entities"] == []


def test_features_are_those_of_the_weights_at_the_first_batch_whatever_was_asked_about_the_data_before(golden, files):
    data, plain = (
        resolve(golden, {"train_file": files["train_file"]}, max_seq_length=64, **options)  # whole sentences
        for options in ({"features": "last", "lstm_layers": 0}, {})
    )
    held_out = data.held_out.source
    assert held_out.content == plain.held_out.source.content and data.train.content == plain.train.content
    for weight in data.model.encoder.weights:  # as a checkpoint is taken
        weight.assign(weight + 1.0)
    number = held_out.plan(0)[0][0]
    feature = held_out.examples[number].stored.features[number]
    ids = feature.input_ids[None]
    wanted = data.model.features({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)})
    found = held_out.batch(0)["word_features"][0, 0, :, 0]
    np.testing.assert_allclose(found, np.asarray(wanted)[0, feature.positions[0], 0], rtol=1e-3, atol=1e-4)


def test_an_evaluation_without_one_whole_text_names_the_option(golden, tmp_path):
    path = tmp_path / "long.conll"
    path.write_text("".join("\n".join(f"{word}\tO" for word in OTHERS * 10) + "\n\n" for _ in range(2)))
    part = resolve(
        golden, {"eval_file": path}, Steps(train=False), training={"eval_steps": 1}, labels=["O", "B-X", "I-X"]
    ).held_out
    rows = [{"logits": np.zeros((32, 3))}] * len(part.features)
    assert part.evaluate(rows[:-1])["tag_accuracy"] == 1.0
    with pytest.raises(ValueError, match=r"training\.eval_steps: expected enough batches .* got 3 of \d+ rows"):
        part.evaluate(rows[:3])


def test_mistakes_are_named_with_their_place(golden, files, tmp_path):
    (tmp_path / "bad.conll").write_text("a\tO\n\nb\tO\nc\tB-ORG\n")
    with pytest.raises(ValueError, match=r"bad\.conll:4: expected a tag of one of \['O', 'B-LOC'.*got 'B-ORG'"):
        resolve(golden, {**files, "eval_file": tmp_path / "bad.conll"})
    with pytest.raises(ValueError, match=r"dev\.conll: 200 of its 200 sentences are in .*train\.conll too"):
        (tmp_path / "dev.conll").write_bytes(files["train_file"].read_bytes())
        resolve(golden, {**files, "eval_file": tmp_path / "dev.conll"})
    with pytest.raises(ValueError, match=r"expected training data: --train_file, or one of train\.txt, "):
        resolve(golden, {})
    with pytest.raises(ValueError, match="max_seq_length: expected at most the model's 64 positions"):
        resolve(golden, files, max_seq_length=65)
    with pytest.raises(ValueError, match=r"options\.labels: expected the tags"):
        make_task(golden).build_model()
    with pytest.raises(ValueError, match=r"feature_layers: expected 0 \(all\) to 2, the encoder's layers, got 3"):
        make_task(golden, labels=["O"], features="sum", feature_layers=3).build_model()
    with pytest.raises(ValueError, match="lstm_size: expected an even number"):
        make_task(golden, labels=["O"], features="last", lstm_size=7).build_model()
    for unused, wanted in (
        ({"crf_rate": 10.0}, "crf: true"),
        ({"boundary_scores": False}, "crf: true"),
        ({"lstm_layers": 1}, "features"),
        ({"features": "last", "feature_layers": 2}, r"features: weighted_sum or sum or concat \(not last\)"),
    ):
        with pytest.raises(
            ValueError,
            match=f"options.{list(unused)[-1]}: expected options.{wanted} with it, got .*it would do nothing",
        ):
            make_task(golden, **unused)


@pytest.mark.parametrize("form", ["jsonl", "json", "list.json", "data.json", "parquet"])
def test_sentences_in_rows_are_those_of_columns(golden, files, tmp_path, form):
    labels = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    given = {}
    for name in ("train_file", "eval_file"):
        sentences = conll.read_sentences(str(files[name])).sentences
        rows = [
            {"id": "x", "tokens": list(one.words), "ner_tags": [labels.index(tag) for tag in one.tags]}
            for one in sentences
        ]
        given[name] = tmp_path / f"{name}.{form}"
        if form == "parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), given[name])
        else:
            given[name].write_text(
                {"list.json": json.dumps(rows, indent=1), "data.json": json.dumps({"data": rows})}.get(
                    form, "".join(json.dumps(row) + "\n" for row in rows)
                )
            )
    found, wanted = (resolve(golden, one, labels=labels) for one in (given, files))
    assert (
        found.train.content == wanted.train.content and found.held_out.source.content == wanted.held_out.source.content
    )


@pytest.mark.parametrize("scheme", ["plain", "iob2"])
def test_tags_that_are_numbers_have_the_names_of_the_labels_or_are_refused(golden, tmp_path, scheme):
    path = tmp_path / "train.jsonl"
    path.write_text('{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["a", "b"], "tags": [2, 0]}\n')
    with pytest.raises(
        ValueError, match=r"train\.jsonl:2: expected options\.labels, .* beside tags that are numbers, got 2"
    ):
        resolve(golden, {"train_file": path}, scheme=scheme, dev_share=0.0)
    labels = ["O", "B-X", "I-X"] if scheme == "iob2" else ["O", "X", "Y"]
    row = resolve(golden, {"train_file": path}, scheme=scheme, labels=labels, dev_share=0.0).train.examples[1]
    # A chunk that begins with I begins with B in IOB2.
    assert row["tags"][row["tag_mask"] > 0].tolist() == ([1, 0] if scheme == "iob2" else [2, 0])


def test_mistakes_in_rows_are_named_with_their_line(golden, tmp_path):
    path = tmp_path / "train.jsonl"
    for row, told in (
        ({"tokens": ["a", "b"], "ner_tags": [0, 5]}, r"train\.jsonl:2: expected the number of one of the 2 tags"),
        (
            {"tokens": ["a", "b"], "ner_tags": ["O", "B-ORG"]},
            r"train\.jsonl:2: expected a tag of one of \['O', 'B-LOC'\]",
        ),
        ({"tokens": ["a"], "ner_tags": []}, r"train\.jsonl:2: expected 1 tags under ner_tags or tags"),
        ({"text": "a"}, r"train\.jsonl:2: expected a list of words under tokens or words"),
    ):
        path.write_text('{"tokens": ["x"], "ner_tags": ["O"]}\n' + json.dumps(row) + "\n")
        with pytest.raises(ValueError, match=told):
            resolve(golden, {"train_file": path}, labels=["O", "B-LOC"])


def test_texts_that_were_not_evaluated_have_no_tags_and_the_others_those_of_a_whole_evaluation(golden, files):
    options = {"features": "last", "lstm_layers": 0, "crf": True, "max_seq_length": 64}
    data = resolve(golden, {"train_file": files["train_file"], "eval_file": files["eval_file"]}, **options)
    part, rng = data.held_out, np.random.default_rng(0)
    order = np.concatenate(part.source.plan(0))
    chain = {name: rng.normal(size=(5,) * rank) for name, rank in (("transitions", 2), ("start_scores", 1))}
    chain |= {"end_scores": rng.normal(size=5)}
    rows = [
        {"logits": rng.normal(size=(len(part.sentences[text].words) + 2, 5)).astype("float32"), **chain}
        for text in order
    ]
    whole, few = part.tags(rows), part.tags(rows[:7])
    assert few == [tags if text in order[:7] else None for text, tags in enumerate(whole)] and None not in whole
