"""Answers by a decoder: rows and losses by hand, damaged sources, a training, its answers and its SavedModel."""

import dataclasses
import json
import types

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import data_files, make_config, resolve

from official_bert.data.batches.text_features import tokenize_all
from official_bert.generation.word_search import Search
from official_bert.interface.predictor import Predictor
from official_bert.objectives.written_words import WrittenWords
from official_bert.runs.whole_run import train
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task
from official_bert.tasks.writing.decoding import DecodedRows, DecodedSource, shift_right, words_of
from official_bert.tasks.writing.task import DecodedAnswers
from official_bert.text.tokenization import FullTokenizer
from official_bert.training.machines.cluster import Placement

SOURCES = ["the river", "a great city time people", "music time people world", ""]
ANSWERS = ["river", "great city", "time music world people", ""]
SEARCH = Search.of({"decoder_start_token_id": 101, "eos_token_id": 102, "pad_token_id": 0})


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(str(golden / "vocab_uncased.txt"))


def test_the_loss_is_smoothed_over_all_words_and_ignores_labels_of_minus_100():
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(3, 4, 7)), rng.integers(0, 7, (3, 4))
    labels[0, 2:], labels[2] = -100, -100
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    counts = labels != -100
    right = np.take_along_axis(logs, np.maximum(labels, 0)[..., None], -1)[..., 0]
    batch = {"labels": tf.constant(labels, tf.int32), "example_weights": tf.constant([1.0, 1.0, 1.0])}
    outputs = {"logits": tf.constant(logits, tf.float32)}
    for smoothing in (0.0, 0.1):
        each = (1 - smoothing) * -right - smoothing * logs.mean(-1)
        objective = WrittenWords(smoothing=smoothing)
        total, weight = objective.losses(outputs, batch)["loss"]
        np.testing.assert_allclose([total, weight], [each[counts].sum(), 6], rtol=1e-5)
        np.testing.assert_allclose(objective.weights(batch)["loss"], 6)
    sums = objective.predictions(outputs, batch)["sums"].numpy()[:, 0]  # without smoothing: of the true answers
    np.testing.assert_allclose(sums[:, 0], (-right * counts).sum(1), rtol=1e-5)
    np.testing.assert_allclose(sums[:, 2], counts.sum(1))
    filler = batch | {"example_weights": tf.constant([0.0, 1.0, 1.0])}
    assert float(objective.weights(filler)["loss"]) == 4


def test_a_decoder_reads_the_start_and_the_words_before_each_label(tokenizer):
    assert shift_right(np.array([7, 8, 3, -100, -100]), 2, 0).tolist() == [2, 7, 8, 3, 0]
    cls, sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
    search = Search.of({"decoder_start_token_id": cls, "eos_token_id": sep, "pad_token_id": 0})
    texts = (tokenize_all(tokenizer, part) for part in (SOURCES, ANSWERS))
    rows = DecodedRows(*texts, tokenizer.template, 4, 4, search)
    city = tokenizer.convert_tokens_to_ids(["great", "city"])
    row = {name: values.tolist() for name, values in rows[1].items()}
    assert row["input_ids"] == [cls, *tokenizer.tokenize_ids("a great city time"), sep]  # cut to 6 tokens
    assert row["labels"] == [*city, sep, -100]
    assert row["target_ids"] == [cls, *city, sep]
    assert rows[0]["target_ids"].tolist() == [cls, *tokenizer.tokenize_ids("river"), sep, 0]
    assert rows[2]["labels"].tolist() == [*tokenizer.tokenize_ids("time music world"), sep]
    assert rows[3]["labels"].tolist() == [sep, -100, -100, -100] and rows[3]["input_ids"].tolist() == [cls, sep]
    assert (rows.cut_sources, rows.cut_answers) == (1, 1)


@pytest.mark.parametrize("kind", ["token_masking", "deletion", "infilling", "sentence_permutation", "mass"])
def test_sources_are_damaged_anew_in_each_epoch_as_functions_of_seed_and_row(tokenizer, kind):
    texts = tokenize_all(tokenizer, ["a great city . the river . music time people world . a great time"] * 20)
    rows = DecodedRows(texts, texts, tokenizer.template, 17, 30, SEARCH)
    damaged = dataclasses.replace(rows, kind=kind, rate=0.5, words=words_of(tokenizer), seed=3)

    def source_of(training):
        return DecodedSource(damaged, 5, 3, training)

    source, again = source_of(True), source_of(True)
    batches = [source.batch(number) for number in range(8)]
    for number in (6, 1):  # in any order, as after a resumption
        for name, values in again.batch(number).items():
            np.testing.assert_array_equal(values, batches[number][name])
    whole = [rows[0]["input_ids"].tolist()] * 20
    epochs = [np.concatenate([batch["input_ids"] for batch in batches[part : part + 4]]) for part in (0, 4)]
    assert sorted(epochs[0].tolist()) != sorted(epochs[1].tolist()) and epochs[0].tolist() != whole
    held_out = source_of(False)
    np.testing.assert_array_equal(held_out.batch(1)["input_ids"], source_of(False).batch(1)["input_ids"])
    if kind != "mass":  # the answer is the whole text
        assert (batches[0]["labels"] == rows[0]["labels"]).all()
        return
    span = batches[0]["labels"] != -100
    row, ids = batches[0], rows[0]["input_ids"]
    np.testing.assert_array_equal(row["labels"][span], ids[row["target_positions"][span] + 1])
    np.testing.assert_array_equal(row["target_ids"][span], ids[row["target_positions"][span]])
    assert span.sum(axis=1).tolist() == [8] * 5  # half of 17 tokens with [CLS]


def options(**more):
    return {"generator": "decoder", "max_seq_length": 12, **more}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"answer_length": 100}, "answer_length: expected at most the decoder's 64 positions, got 100"),
        ({"generator": "passes", "shared": True}, "shared: expected options.generator: decoder"),
        ({"passes": 2}, "passes: expected options.generator: passes"),
        ({"answer_column": "source"}, "answer_column: expected another column than source_column"),
        ({"search": {"num_beams": 0}}, "num_beams: expected 1 to 256, got 0"),
        ({"shared": True, "decoder": {"hidden_size": 24}}, "decoder: expected none beside shared"),
        ({"decoder": {"rotary": 100.0}}, "decoder: a second attention is computed in layers like BERT's, got rotary"),
        ({"search": {"beams": 4}}, "config.options.search: unknown keys"),
        ({"corruption": "noise"}, "corruption: expected one of"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(tmp_path, more, message):
    (tmp_path / "train.tsv").write_text("source\tanswer\na\tb\n")
    with pytest.raises(ValueError, match=message) as error:
        resolve(
            make_config("text_to_text", options=options(**more)),
            Steps(evaluate=False),
            train_file=tmp_path / "train.tsv",
        )
    assert "\n" not in str(error.value)


def test_a_decoder_of_its_own_sizes_comes_with_its_checkpoint(golden, tmp_path):
    (tmp_path / "train.tsv").write_text("source\tanswer\n" + "the river\triver\n" * 4)
    path = str(golden / "tf1_bert")
    config = make_config("text_to_text", options=options(decoder_checkpoint=path))
    resolved = resolve(config, Steps(evaluate=False), train_file=tmp_path / "train.tsv")
    decoder = resolved.task.options.decoder
    sizes = json.loads((golden / "tf1_bert/bert_config.json").read_text())
    assert (decoder.hidden_size, decoder.num_hidden_layers) == (sizes["hidden_size"], sizes["num_hidden_layers"])
    assert resolved.task.options.answer_length == 1 + len(resolved.task.tokenizer.tokenize("river"))
    assert resolved.model.decoder.config == decoder and resolved.model.decoder_checkpoint == path


@pytest.mark.parametrize(("beams", "counts"), [(1, [1, 4]), (2, [1, 2, 4])])
def test_a_report_compares_greedy_answers_with_four_beams_and_those_of_the_run(beams, counts):
    task = types.SimpleNamespace(options=types.SimpleNamespace(search=Search(num_beams=beams)))
    assert DecodedAnswers(task, *[None] * 4).counts() == counts


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"shared": True}, {"decoder": {"hidden_size": 24}}], ids=str)
def test_a_run_learns_to_write_and_run_predictor_and_export_agree(tmp_path, more):
    from official_bert.interface.exporting import export

    letters = "abcdefghij"
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]) + "\n")
    rows = [f"{first} {second}\t{second} {first} {first}\n" for first in letters for second in letters]
    (tmp_path / "train.tsv").write_text("source\tanswer\n" + "".join(rows))
    model = {"vocab_size": 15, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    if "decoder" in more:
        more = {"decoder": {**model, "num_hidden_layers": 1, "max_position_embeddings": 64, **more["decoder"]}}
    config = make_config(
        "text_to_text",
        tokenizer={"vocab_file": str(vocab)},
        model=model,
        options=options(**more),
        training={"epochs": 30.0, "eval_epochs": 30.0, "batch_size": 20},
    )
    files = data_files(train_file=tmp_path / "train.tsv", eval_file=tmp_path / "train.tsv", allow_same_data=True)
    result = train(load_task(config), files, str(tmp_path / "run"), Placement())
    assert result.metrics["exact_match"] > 0.95 and result.metrics["perplexity"] < 1.2
    compared, _ = result.resolved.held_out.examine(result.predictions)
    assert [row["beams"] for row in compared.values] == [1, 4] and compared.values[0]["exact_match"] > 0.95
    texts = ["c d", "i b", "a a", "j"]
    greedy = Predictor(tmp_path / "run")(texts)
    assert [answer["answer"] for answer in greedy[:3]] == ["d c c", "b i i", "a a a"]
    assert [Predictor(tmp_path / "run")(text)["answer"] for text in texts] == [answer["answer"] for answer in greedy]
    beams = Predictor(tmp_path / "run", beams=3)(texts)
    assert [answer["answer"] for answer in beams[:3]] == ["d c c", "b i i", "a a a"]
    export(tmp_path / "run", tmp_path / "model")
    exported = Predictor(tmp_path / "model")(texts)
    assert [answer["answer"] for answer in exported] == [answer["answer"] for answer in greedy]
    np.testing.assert_allclose([a["score"] for a in exported], [a["score"] for a in greedy], rtol=1e-4)
    with pytest.raises(ValueError, match="a decoder is asked once for each word, in a loop that these formats lack"):
        export(tmp_path / "run", tmp_path / "other", "onnx")
