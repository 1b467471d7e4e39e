"""Longer and shorter tables of positions, and vocabularies with fewer and more tokens: the same answers for the same
texts.
"""

import json

import made_checkpoints
import made_tokenizers
import numpy as np
import pytest
from commands import run_here

import official_bert
from official_bert.models.interchange import formats
from official_bert.text import loading
from official_bert.text.graph_loading import load_graph
from official_bert.tools.resizing import tokenizers
from official_bert.tools.resizing import weights as resizing

TEXTS = made_tokenizers.TEXT[:4]


def resize(*arguments):
    return run_here("tools/resize_checkpoint.py", *arguments)


def test_tables_of_positions_are_cut_repeated_or_interpolated():
    """Worked out by hand: two rows that no token has, then positions 0 to 3."""
    stored = made_checkpoints.stored_small("", first_position=2, max_position_embeddings=6)
    table = np.array([[90.0], [91.0], [0.0], [3.0], [6.0], [-3.0]]) * np.ones((1, 8))
    stored = resizing.dataclasses.replace(stored, weights={**stored.weights, resizing.POSITIONS: table})
    for length, fill, wanted in (
        (2, "interpolate", [0, 3]),
        (4, "repeat", [0, 3, 6, -3]),
        (7, "repeat", [0, 3, 6, -3, 0, 3, 6]),
        (7, "interpolate", [0, 1.5, 3, 4.5, 6, 1.5, -3]),
    ):
        changed = resizing.resize_positions(stored, length, fill)
        np.testing.assert_allclose(changed.weights[resizing.POSITIONS][:, 0], [90, 91, *wanted])
        assert changed.config.longest_row == length
    assert formats.make_model(changed)
    without = resizing.resize_positions(
        made_checkpoints.stored_small("", position_buckets=4, position_span=12), 40, "repeat"
    )
    assert (
        without.config.longest_row == 40
        and without.config.position_span == 12
        and resizing.POSITIONS not in without.weights
    )


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "albert" else kind for kind in made_tokenizers.KINDS]
)
def test_a_pruned_tokenizer_gives_the_same_tokens_for_the_texts_whose_tokens_it_kept(tmp_path, kind):
    tokenizer = loading.load(made_tokenizers.write(tmp_path / "whole", kind))
    used = {token for text in TEXTS for token in tokenizer.tokenize(text)}
    for characters in (True, False):
        kept = tokenizers.tokens_to_keep(tokenizer, used, characters)
        pruned = loading.of_files(tokenizers.pruned(tokenizer, kept), "pruned")
        assert used <= pruned.vocab.keys() and pruned.size < tokenizer.size
        assert sorted(pruned.vocab.values()) == list(range(len(pruned.vocab)))
        for text in TEXTS:
            assert pruned.tokenize_with_offsets(text) == tokenizer.tokenize_with_offsets(text)
        assert pruned.special == tokenizer.special and pruned.template.separators == tokenizer.template.separators
    assert not characters and pruned.size < len(used) + 350


@pytest.mark.slow
@pytest.mark.parametrize("kind", made_tokenizers.KINDS)
def test_words_that_are_added_are_one_token_where_no_letter_stands_beside_them(tmp_path, kind):
    tokenizer = loading.load(made_tokenizers.write(tmp_path / "whole", kind, added_tokens_decoder={}))
    larger = loading.of_files(tokenizers.extended(tokenizer, ["glassblower", "Brno"]), "larger")
    assert {larger.vocab["glassblower"], larger.vocab["Brno"]} == {tokenizer.size, tokenizer.size + 1}
    assert "glassblower" in larger.tokenize("the glassblower, in Brno") and "Brno" not in larger.tokenize("Brnofoo")
    for text in TEXTS:
        assert larger.tokenize_ids(text) == tokenizer.tokenize_ids(text)


@pytest.mark.slow
@pytest.mark.parametrize("kind", made_checkpoints.CLASSES)
def test_a_resized_model_answers_as_before_and_tells_its_history(tmp_path, monkeypatch, root, kind):
    monkeypatch.chdir(root)
    folder, sizes = made_checkpoints.write_relative(tmp_path / "hf", kind), {}
    (tmp_path / "text.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "words.txt").write_text("glassblower\nBrno\n\nthe\n", encoding="utf-8")
    done = resize(
        f"--init_checkpoint={folder}", f"--output_dir={tmp_path}/small", "--prune", f"--input_file={tmp_path}/text.txt"
    )
    assert done.returncode == 0, done.stderr
    done = resize(
        f"--init_checkpoint={tmp_path}/small",
        f"--output_dir={tmp_path}/large",
        f"--words_file={tmp_path}/words.txt",
        "--max_seq_length=300",
        "--positions=repeat",
    )
    assert done.returncode == 0, done.stderr
    outputs, tokenizers_of = {}, {}
    for name in ("hf", "small", "large"):
        tokenizer, encoder = official_bert.load_tokenizer(tmp_path / name), official_bert.load_encoder(tmp_path / name)
        outputs[name], sizes[name] = (
            np.asarray(encoder(tokenizer.encode(TEXTS))["sequence_output"]),
            encoder.settings["vocab_size"],
        )
        tokenizers_of[name] = tokenizer
        assert load_graph(str(tmp_path / name)).tokenize(TEXTS).to_list() == [
            tokenizer.tokenize_ids(text) for text in TEXTS
        ]
    for name in ("small", "large"):
        np.testing.assert_allclose(outputs[name], outputs["hf"], atol=1e-5)
    assert sizes["small"] < 700 < sizes["hf"] == 1300 and sizes["large"] - sizes["small"] == 2
    table = formats.read(str(tmp_path / "large")).weights["embeddings/word_embeddings"]
    before, larger = tokenizers_of["small"], tokenizers_of["large"]
    pieces = before.convert_tokens_to_ids(before.tokenize_word("glassblower"))
    old = formats.read(str(tmp_path / "small")).weights["embeddings/word_embeddings"]
    np.testing.assert_allclose(table[larger.vocab["glassblower"]], old[pieces].mean(axis=0), atol=1e-6)
    history = json.loads((tmp_path / "large/resized.json").read_text())
    assert [list(note) for note in history] == [["of", "pruned"], ["of", "extended", "positions"]]
    assert history[1]["of"] == "small" and history[1]["positions"] == {
        "from": history[1]["positions"]["from"],
        "to": 300,
        "how": "repeat" if "embeddings/position_embeddings" in formats.read(str(folder)).weights else "no table",
    }


@pytest.mark.slow
def test_a_bert_of_2018_is_resized_too(tmp_path, monkeypatch, root, golden):
    monkeypatch.chdir(root)
    (tmp_path / "words.txt").write_text("Glassblower\n")
    text = golden / "text_a.txt"
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert/vocab.txt").write_bytes((golden / "vocab_uncased.txt").read_bytes())
    for path in (golden / "tf1_bert").iterdir():
        (tmp_path / "bert" / path.name).write_bytes(path.read_bytes())
    done = resize(
        f"--init_checkpoint={tmp_path}/bert/bert_model.ckpt",
        f"--output_dir={tmp_path}/out",
        "--prune",
        f"--input_file={text}",
        f"--words_file={tmp_path}/words.txt",
        "--to=ours",
        "--max_seq_length=600",
    )
    assert done.returncode == 0, done.stderr
    assert official_bert.load_tokenizer(tmp_path / "out").tokenize("the glassblower") == ["the", "glassblower"]
    assert official_bert.load_encoder(tmp_path / "out").settings["max_position_embeddings"] == 600


def test_a_discriminator_of_another_size_is_written_without_its_generator_and_not_as_a_run(tmp_path, monkeypatch, root):
    monkeypatch.chdir(root)
    source = "tests/golden/family/electra_discriminator/ElectraForPreTraining"
    arguments = (f"--init_checkpoint={source}", "--max_seq_length=8")
    done = resize(*arguments, f"--output_dir={tmp_path}/run", "--to=ours")
    assert done.returncode == 1 and "--to=hugging_face writes only the discriminator" in done.stderr, done.stderr
    assert not (tmp_path / "run").exists() and "--leave_out" not in done.stderr
    done = resize(*arguments, f"--output_dir={tmp_path}/out", "--to=hugging_face")
    stored = formats.read(str(tmp_path / "out"))
    assert done.returncode == 0 and stored.head == "replaced" and stored.config.longest_row == 8, done.stderr


def test_mistakes_are_one_line(tmp_path, monkeypatch, root):
    monkeypatch.chdir(root)
    for arguments, told in (
        ((), "expected one of --max_seq_length, --prune, --words_file and --num_words"),
        (("--prune",), "--input_file: expected it with --prune"),
        (("--input_file=x", "--max_seq_length=8"), "--input_file: expected it with --prune"),
        (("--vectors=x", "--max_seq_length=8"), "--vectors: expected new words"),
        (("--nokeep_characters", "--max_seq_length=8"), "--keep_characters: expected --prune with it"),
    ):
        done = resize(f"--init_checkpoint={tmp_path}", f"--output_dir={tmp_path}/out", *arguments)
        assert done.returncode == 1 and told in done.stderr and not (tmp_path / "out").exists(), done.stderr
