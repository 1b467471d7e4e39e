"""The page on a model's inside: its numbers beside the layers' own and ones worked out by hand, and whole commands."""

import json
import random
import re
import types

import keras
import made_checkpoints
import numpy as np
import pytest
from commands import imported_tool, run_here

from official_bert.models.encoder import BertEncoder
from official_bert.models.interchange import formats
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.vocab import read_entries

pytestmark = pytest.mark.usefixtures("eager_predictors")

# Its last line is too long for the model: the words at its end are cut off.
TEXT = (
    """The surveyor measured the copper price.
Her neighbour misplaced the copper atlas in the rain.

The atlas rained on her neighbour.
Was the price of the atlas in the copper?
"""
    + "neighbour " * 38
    + "the price.\n"
)


@pytest.fixture(scope="module")
def tool():
    with imported_tool("look_inside") as module:
        yield module


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
def test_with_the_weights_of_attention_the_values_give_what_the_layer_gives(tool, attention):
    keras.utils.set_random_seed(1)
    encoder = BertEncoder(
        vocab_size=50,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=24,
        max_position_embeddings=16,
        initializer_range=0.5,
        attention=attention,
        return_layers=True,
    )
    inputs = {
        "input_ids": np.arange(7)[None] % 50,
        "input_mask": np.ones((1, 7), np.int32),
        "segment_ids": np.zeros((1, 7), np.int32),
    }
    weights = tool.attention_weights(encoder, inputs)
    assert weights.shape == (2, 3, 7, 7)
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-6)
    outputs = encoder(inputs)
    mask = np.tril(np.ones((7, 7), bool))[None, None] if attention == "left_to_right" else np.ones((1, 1, 1, 7), bool)
    for x, layer, own in zip(
        [outputs["embedding_output"], *outputs["layer_outputs"]], encoder.transformer_layers, weights
    ):
        mixed = np.einsum("nqs,snh->qnh", own, np.asarray(layer.attention.value(x))[0])
        np.testing.assert_allclose(layer.attention.merge_heads(mixed[None]), layer.attention(x, mask), atol=1e-5)


def test_kinds_of_places_are_those_seen_from_each_token(tool):
    kinds = tool.kinds_of_places(np.array([2, 7, 7, 3]))
    assert kinds["one before"].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    assert kinds["one after"].tolist() == kinds["one before"].T.tolist()
    assert kinds["[CLS], [SEP]"].tolist() == [[1, 0, 0, 1]] * 4
    assert kinds["same token elsewhere"].tolist() == [[0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_blanks_are_counted(tool):
    blanks = [("a [MASK]", "the"), ("b [MASK]", "the"), ("c [MASK]", "copper")]
    answers = [
        {"tokens": [guesses], "probabilities": [[0.5, 0.25]]}
        for guesses in (["the", "of"], ["of", "the"], ["of", "tin"])
    ]
    shown, counted = tool.blanks_sections(blanks, answers)
    assert shown.rows[1] == ("b [MASK]", "the", "✓", "“of” 0.50  |  ✓“the” 0.25")
    assert shown.rows[2] == ("c [MASK]", "copper", "", "“of” 0.50  |  “tin” 0.25")
    assert [row[1:] for row in counted.rows] == [
        (2, 0.5, 1.0, 1.0),
        (1, 0.0, 0.0, 0.0),
        (3, pytest.approx(1 / 3), pytest.approx(2 / 3), pytest.approx(2 / 3)),
    ]


def test_hidden_words_are_whole_entries_as_the_vocabulary_writes_them(tool):
    vocab = {"copper": 0, "rained": 1, "on": 2}
    found = tool.choose_blanks(["Copper rained on unheard-of land.", "Too short."], vocab, True, random.Random(0))
    assert found == [
        ("[MASK] rained on unheard-of land.", "copper"),
        ("Copper [MASK] on unheard-of land.", "rained"),
        ("Copper rained [MASK] unheard-of land.", "on"),
    ]
    cased = tool.choose_blanks(["Copper rained on unheard-of land."], vocab, False, random.Random(0))
    assert [word for _, word in cased] == ["rained", "on"]


def test_neighbours_are_the_nearest_by_cosine(tool, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "copper", "atlas", "rained", "price"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    vectors = np.array([[9.0, 9.0]] * 5 + [[1.0, 0.0], [0.0, 3.0], [5.0, 1.0], [1.0, 0.0]])
    section = tool.neighbours_section(vectors, tokenizer, {"copper": 30, "atlas": 20, "rained": 10, "price": 3}, 10)
    assert section.rows == [
        ("copper", 30, "rained 0.98  |  atlas 0.00"),
        ("atlas", 20, "rained 0.20  |  copper 0.00"),
        ("rained", 10, "copper 0.98  |  atlas 0.20"),
    ]
    assert not tool.neighbours_section(vectors, tokenizer, {"copper": 30}, 10).rows


@pytest.mark.slow
def test_lines_that_the_model_sees_whole_are_chosen(tool):
    lines = ["a " * count for count in (1, 8, 14, 15, 62, 63)]
    pieces = [line.split() for line in lines]

    def chosen(positions, **options):
        fill = types.SimpleNamespace(config=types.SimpleNamespace(options=options))
        encoder = types.SimpleNamespace(settings={"max_position_embeddings": positions})
        return [len(line.split()) for line in tool.lines_that_fit(fill, encoder, lines, pieces)]

    assert chosen(512) == [1, 8, 14, 15, 62]  # with [CLS] and [SEP] 64 pieces are looked at
    assert chosen(16) == chosen(512, max_seq_length=16) == [1, 8, 14]
    assert chosen(2) == [1, 8, 14, 15, 62, 63]  # none fits: all are cut, as before


@pytest.mark.slow
def test_a_page_is_made_of_a_model_and_a_text(tmp_path, golden):
    stored = made_checkpoints.stored_small(
        "pretraining", vocab_size=3000, max_position_embeddings=64, num_hidden_layers=1
    )
    words = read_entries(str(golden / "vocab_uncased.txt"))
    formats.write(
        formats.dataclasses.replace(stored, vocab=words, do_lower_case=True), "hugging_face", str(tmp_path / "bert")
    )
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "empty.txt").write_text("\n\n")
    arguments = ("tools/look_inside.py", f"--model={tmp_path}/bert", f"--output_dir={tmp_path}/inside")
    done = run_here(*arguments, f"--input_file={tmp_path}/text.txt")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "inside/report.json").read_text())
    assert set(report) == {
        "title",
        "blanks",
        "blanks_counted",
        "neighbours",
        "attention",
        "attention_on_average",
        "plane",
    }
    assert sum(report["attention_on_average"][-1][kind] for kind in ("itself", "one before")) < 1
    page = (tmp_path / "inside/report.html").read_text()
    assert len(re.findall("<img ", page)) == 2 and "[MASK]" in page
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("task: pretraining\n")
    done = run_here(*arguments[:2], f"--output_dir={tmp_path}/run", f"--input_file={tmp_path}/text.txt")
    assert done.returncode == 1 and "run: expected a folder for this page, got a run with a report" in done.stderr
    (tmp_path / "bert/vocab.txt").rename(tmp_path / "words.txt")
    done = run_here(*arguments, f"--input_file={tmp_path}/text.txt", f"--vocab_file={tmp_path}/words.txt")
    assert done.returncode == 0 and json.loads((tmp_path / "inside/report.json").read_text()) == report, done.stderr
    for wrong, why in (
        (f"--input_file={tmp_path}/text.txt", "no vocabulary found beside it; --vocab_file gives it"),
        (f"--input_file={tmp_path}/empty.txt", "expected sentences, one per line, got no text"),
        ("--input_file=nowhere.txt", "nowhere.txt"),
    ):
        done = run_here(*arguments, wrong)
        assert done.returncode == 1 and why in done.stderr, done.stderr


@pytest.mark.slow
def test_a_model_with_another_attention_or_other_tokens_is_refused(tmp_path, monkeypatch, root):
    monkeypatch.chdir(root)
    (tmp_path / "text.txt").write_text(TEXT)
    stored = made_checkpoints.stored_small("pretraining", relative_buckets=32)
    formats.write(stored, "ours", str(tmp_path / "distances"))
    made_checkpoints.write_relative(tmp_path / "roberta", "roberta")
    for name, told in (
        ("distances", "expected a model with BERT's attention, got one with relative_buckets"),
        ("roberta", "expected a model with a WordPiece vocabulary, got one with another tokenizer"),
    ):
        done = run_here(
            "tools/look_inside.py",
            f"--model={tmp_path / name}",
            f"--input_file={tmp_path}/text.txt",
            f"--output_dir={tmp_path}/out",
        )
        assert done.returncode == 1 and told in done.stderr and not (tmp_path / "out").exists(), done.stderr
