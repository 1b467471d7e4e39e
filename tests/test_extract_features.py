"""The command of 2018's extract_features.py: its golden lines, the same numbers in other formats, mistakes."""

import json

import made_tokenizers
import numpy as np
import pyarrow.parquet
import pytest
from commands import run_here

from official_bert.data import layer_output_files
from official_bert.models.encoder import BertEncoder


@pytest.fixture(scope="module")
def extract(golden, tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")

    def run(output, *more, source=golden / "extract_features_input.txt"):
        done = run_here(
            "-m",
            "official_bert.extract_features",
            f"--input_file={source}",
            f"--output_file={folder / output}",
            "--layers=-1,-2,-3",
            "--max_seq_length=24",
            f"--vocab_file={golden}/vocab_uncased.txt",
            "--do_lower_case=True",
            f"--bert_config_file={golden}/tf1_bert/bert_config.json",
            f"--init_checkpoint={golden}/tf1_bert/bert_model.ckpt",
            *more,
        )
        return done, folder / output

    return run


@pytest.fixture(scope="module")
def wanted(golden):
    return [json.loads(line) for line in (golden / "extract_features.jsonl").read_text().splitlines()]


def test_two_texts_are_refused_for_a_model_of_one_segment(golden, tmp_path):
    encoder = BertEncoder(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=32,
        type_vocab_size=1,
    )
    encoder.build()
    encoder.save(tmp_path / "encoder.keras")
    other = made_tokenizers.write(tmp_path / "roberta", "roberta")  # puts both texts in segment 0
    for text, vocab, refused in (
        ("one\n", f"{golden}/vocab_uncased.txt", False),
        ("one\none ||| other\n", other, False),
        ("one\none ||| other\n", f"{golden}/vocab_uncased.txt", True),
    ):
        (tmp_path / "texts").write_text(text)
        casing = ["--do_lower_case=True"] if vocab != other else []
        done = run_here(
            "-m",
            "official_bert.extract_features",
            f"--input_file={tmp_path}/texts",
            f"--output_file={tmp_path}/features.npz",
            "--layers=-1",
            "--max_seq_length=24",
            f"--vocab_file={vocab}",
            *casing,
            f"--init_checkpoint={tmp_path}/encoder.keras",
        )
        assert done.returncode == refused, done.stderr
        assert (
            "texts: expected a model.type_vocab_size of at least 2 for two texts in a row" in done.stderr
        ) == refused
        if vocab == other:
            tokens = np.load(tmp_path / "features.npz")["tokens"].tolist()
            assert tokens.count("<s>") == 2 and tokens[tokens.index("</s>", 4) :].count("</s>") == 3


def values(row, layer):
    return np.array(
        [next(part["values"] for part in token["layers"] if part["index"] == layer) for token in row["features"]]
    )


def test_json_lines_are_those_of_2018(extract, wanted):
    done, path = extract("features.jsonl")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["linex_index"] for row in found] == [row["linex_index"] for row in wanted]
    for row, other in zip(found, wanted):
        assert [token["token"] for token in row["features"]] == [token["token"] for token in other["features"]]
        assert [[part["index"] for part in token["layers"]] for token in row["features"]] == [[-1, -2, -3]] * len(
            row["features"]
        )
        for layer in (-1, -2, -3):
            np.testing.assert_allclose(values(row, layer), values(other, layer), atol=1e-5)


def test_other_formats_hold_the_same(extract, wanted):
    done, path = extract("features.npz", "--batch_size=2")
    assert done.returncode == 0, done.stderr
    with np.load(path) as arrays:
        starts = arrays["starts"]
        for number, row in enumerate(wanted):
            part = slice(starts[number], starts[number + 1])
            assert arrays["tokens"][part].tolist() == [token["token"] for token in row["features"]]
            np.testing.assert_allclose(arrays["layer_-2"][part], values(row, -2), atol=1e-5)
    path = path.with_suffix(".parquet")
    with layer_output_files.open_writer(str(path), (-1, -2, -3)) as write:
        write(
            [
                layer_output_files.SentenceOutputs(
                    row["linex_index"],
                    [token["token"] for token in row["features"]],
                    {layer: values(row, layer) for layer in (-1, -2, -3)},
                )
                for row in wanted
            ]
        )
    rows = pyarrow.parquet.read_table(path).to_pylist()
    for row, other in zip(rows, wanted, strict=True):
        assert row["index"] == other["linex_index"] and row["tokens"] == [token["token"] for token in other["features"]]
        np.testing.assert_allclose(np.array(row["layer_-3"]), values(other, -3), atol=1e-5)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--layers=-1,7"], "--layers=-1,7: expected -"),
        (["--layers=-1,-2,-1"], "--layers=-1,-2,-1: expected each number once"),
        (["--max_seq_length=1000"], "--max_seq_length"),
        (["--input_file=nowhere"], "--input_file=nowhere: no such file"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(extract, more, told):
    done, path = extract("none.jsonl", *more)
    assert (
        done.returncode == 1
        and done.stderr.splitlines()[-1].startswith(f"error: {told}")
        and "Traceback" not in done.stderr
    )
    assert not path.exists()


def test_a_vocabulary_of_more_words_than_the_model_is_refused(extract, golden, tmp_path):
    words = (golden / "vocab_uncased.txt").read_text(encoding="utf-8")
    (tmp_path / "vocab.txt").write_text(f"{words}glassblower\n", encoding="utf-8")
    done, path = extract("long.jsonl", f"--vocab_file={tmp_path}/vocab.txt")
    assert (
        done.returncode == 1 and "vocab.txt: expected at most model.vocab_size = 3000 entries, got 3001" in done.stderr
    )
    assert not path.exists()


def test_bytes_that_are_no_text_are_named(extract, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffd\n")
    done, path = extract("bad.jsonl", source=tmp_path / "bad.txt")
    assert (
        done.returncode == 1
        and "bad.txt:2: not valid UTF-8 at byte 6 of the file (0xff)" in done.stderr
        and not path.exists()
    )


def test_the_texts_are_not_written_over(extract, tmp_path):
    text = tmp_path / "lines.txt"
    text.write_text("A line.\n")
    done, _ = extract("none.jsonl", f"--output_file={tmp_path}/./lines.txt", source=text)
    assert (
        done.returncode == 1
        and "lines.txt: this output is an input too" in done.stderr
        and text.read_text() == "A line.\n"
    )


def test_lines_that_are_cut_are_counted(extract, tmp_path):
    (tmp_path / "texts").write_text("short\n" + "long " * 40 + "\nlong " + "long ||| " + "other " * 40 + "\n")
    done, _ = extract("cut.npz", source=tmp_path / "texts")
    assert (
        done.returncode == 0
        and "texts: 2 of its lines are longer than --max_seq_length=24 tokens and were cut" in done.stderr
    )
    (tmp_path / "texts").write_text("short\n")
    assert "were cut" not in extract("whole.npz", source=tmp_path / "texts")[0].stderr
