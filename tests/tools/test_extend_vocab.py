"""Extending a vocabulary with its checkpoint: the rows against means worked out here, the rest untouched."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from commands import run_here

from official_bert.config import load_config
from official_bert.models.interchange import formats
from official_bert.text.tokenization import FullTokenizer

EMBEDDINGS, BIAS = "bert/embeddings/word_embeddings", "cls/predictions/output_bias"


def extend(root, *arguments):
    return run_here("tools/resize_checkpoint.py", *arguments)


def last_line(done):
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")][-1]


@pytest.fixture
def vocab(golden, tmp_path):
    """Writes the golden vocabulary with two of its [unusedN] slots left, one of them near the end."""
    lines = (golden / "vocab_uncased.txt").read_text(encoding="utf-8").splitlines()
    assert lines[1:11] == [f"[unused{number}]" for number in range(10)]
    lines[1:11] = [f"filled{number}" if number != 4 else "[unused4]" for number in range(10)]
    lines[2990] = "[unused9]"
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_2018_checkpoint_gets_rows_that_are_means_of_their_pieces(root, golden, tmp_path, vocab):
    (tmp_path / "words.txt").write_text("Glassblower\nthe\n\nthermometers\nBrno\n", encoding="utf-8")
    out = tmp_path / "out"
    done = extend(
        root,
        f"--vocab_file={vocab}",
        f"--words_file={tmp_path}/words.txt",
        f"--output_dir={out}",
        f"--bert_config_file={golden}/tf1_bert/bert_config.json",
        f"--init_checkpoint={golden}/tf1_bert/bert_model.ckpt",
    )
    assert done.returncode == 0, done.stderr
    assert "3 new words (2 in [unusedN] slots, 1 rows added; 1 existed already), vocab_size 3001" in done.stdout
    old, new = FullTokenizer(str(vocab)), FullTokenizer(str(out / "vocab.txt"))
    assert {new.inv_vocab[index] for index in (5, 2990, 3000)} == {"glassblower", "thermometers", "brno"}
    before, after = (tf.train.load_checkpoint(str(path)) for path in (golden / "tf1_bert/bert_model.ckpt", out))
    assert sorted(after.get_variable_to_shape_map()) == sorted(before.get_variable_to_shape_map())
    for name in before.get_variable_to_shape_map():
        was, now = before.get_tensor(name), after.get_tensor(name)
        if name not in (EMBEDDINGS, BIAS):
            np.testing.assert_array_equal(now, was)
            continue
        kept = [index for index in range(3000) if index not in (5, 2990)]
        np.testing.assert_array_equal(now[kept], was[kept])
        for word in ("glassblower", "thermometers", "brno"):
            pieces = old.convert_tokens_to_ids(old.tokenize(word))
            assert len(pieces) > 1 and new.tokenize(word) == [word]
            np.testing.assert_allclose(
                now[new.vocab[word]], sum(was[index] for index in pieces) / len(pieces), rtol=1e-5, atol=1e-7
            )
    config = json.loads((golden / "tf1_bert/bert_config.json").read_text())
    assert json.loads((out / "bert_config.json").read_text()) == config | {"vocab_size": 3001}
    history = json.loads((out / "resized.json").read_text())
    assert history == [{"of": "bert_model.ckpt", "extended": {"words": 3, "rows": 3001}}]


def test_a_yaml_names_the_new_vocabulary(root, tmp_path, vocab):
    (tmp_path / "run.yaml").write_text("model: {vocab_size: 3008, hidden_size: 8, num_attention_heads: 2}\n")
    (tmp_path / "words.txt").write_text("glassblower\nthermometers\nbrno\n")
    out = tmp_path / "out"
    done = extend(
        root,
        f"--vocab_file={vocab}",
        f"--words_file={tmp_path}/words.txt",
        f"--output_dir={out}",
        f"--config={tmp_path}/run.yaml",
    )
    assert done.returncode == 0, done.stderr
    config = load_config(str(out / "config.yaml"))
    # Rows beyond the vocabulary (a size rounded up) are there to be used.
    assert config.model.vocab_size == 3008 and config.tokenizer.vocab_file == str(out / "vocab.txt")
    assert len(FullTokenizer(config.tokenizer.vocab_file).vocab) == 3001


def test_words_of_a_domain_are_those_that_save_the_most_tokens(root, golden, tmp_path, vocab):
    out = tmp_path / "out"
    (tmp_path / "text.txt").write_text("The quartermaster repainted it. " * 9 + "Antidisestablishmentarian. " * 8)
    done = extend(
        root,
        f"--vocab_file={vocab}",
        f"--input_file={tmp_path}/text.txt",
        "--num_words=2",
        "--min_frequency=5",
        f"--output_dir={out}",
    )
    assert done.returncode == 0, done.stderr
    tokenizer = FullTokenizer(str(out / "vocab.txt"))
    # 9, 8, 7, 6 pieces and more: the longest word first, into the slot with the smaller id.
    assert tokenizer.inv_vocab[5] == "antidisestablishmentarian" and tokenizer.inv_vocab[2990] == "quartermaster"
    assert sorted(os.listdir(out)) == ["vocab.txt"]


def test_a_mistake_is_one_line_and_leaves_nothing_behind(root, golden, tmp_path, vocab):
    (tmp_path / "words.txt").write_text("fine\nice-cream\n")
    (tmp_path / "many.txt").write_text("aabb\nbbcc\nccdd\n")
    (tmp_path / "few.txt").write_text("the 1 2\naabb 3 4\n")
    (tmp_path / "wiki_00").write_text(
        '<doc id="1" url="https://en.wikipedia.org/wiki?curid=1" title="A">\nA glassblower.\n</doc>\n'
    )
    (tmp_path / "alone").mkdir()
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        shutil.copy(golden / "tf1_bert" / name, tmp_path / "alone")
    config = f"--bert_config_file={golden}/tf1_bert/bert_config.json"
    checkpoint = f"--init_checkpoint={golden}/tf1_bert/bert_model.ckpt"
    (tmp_path / "other.json").write_text('{"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 2900}')
    for arguments, told in (
        (
            (f"--words_file={tmp_path}/words.txt",),
            "words.txt:2: expected one word, got 'ice-cream', which the tokenizer always splits into ice - cream",
        ),
        ((f"--words_file={tmp_path}/many.txt", "--nogrow"), "has 2 [unusedN] slots for 3 new words"),
        ((), "expected one of --max_seq_length, --prune, --words_file and --num_words"),
        (
            (f"--words_file={tmp_path}/many.txt", f"--init_checkpoint={tmp_path}/alone/bert_model.ckpt"),
            "expected a bert_config.json beside it",
        ),
        ((f"--words_file={tmp_path}/many.txt", "--prune"), "--input_file: expected it with --prune"),
        (("--max_seq_length=8",), "expected --init_checkpoint or, to only add words or make a new model"),
        (
            (f"--words_file={tmp_path}/many.txt", checkpoint, f"--config={tmp_path}/none.yaml"),
            "--config: expected no --init_",
        ),
        ((f"--words_file={tmp_path}/many.txt", f"--vectors={tmp_path}/few.txt"), "--vectors needs --init_checkpoint"),
        (
            (f"--words_file={tmp_path}/many.txt", checkpoint, config, f"--vectors={tmp_path}/few.txt"),
            "--vectors: expected vectors for at least 4 words of the old vocabulary, twice their 2 numbers",
        ),
        (
            (f"--words_file={tmp_path}/many.txt", checkpoint, config, f"--vectors={tmp_path}/words.txt"),
            "words.txt:1: expected a word and 2 numbers, got 'fine'",
        ),
        (
            (f"--words_file={tmp_path}/many.txt", checkpoint, f"--bert_config_file={tmp_path}/other.json"),
            "expected at most model.vocab_size = 2900 entries, got 3000",
        ),
        (
            (f"--input_file={tmp_path}/wiki_00", "--num_words=9"),
            "wiki_00: expected text with a sentence on each line, got WikiExtractor's output",
        ),
        ((f"--words_file={tmp_path}/many.txt", "--num_words=9"), "--input_file: expected it with --prune (to keep"),
        ((f"--words_file={tmp_path}/many.txt", "--random_seed=2"), "--random_seed: expected --vectors, and without"),
        ((f"--words_file={tmp_path}/many.txt", f"--config={tmp_path}/none.yaml"), "no such configuration file"),
    ):
        done = extend(root, f"--vocab_file={vocab}", f"--output_dir={tmp_path}/out", *arguments)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        assert told in last_line(done)
        assert not list(tmp_path.glob("out*"))


def test_a_vocabulary_of_another_checkpoint_is_refused(root, golden, tmp_path, vocab):
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "bert_config.json"):
        shutil.copy(golden / "tf1_bert" / name, tmp_path)
    lines = vocab.read_text(encoding="utf-8").splitlines()
    lines[1500], lines[1501] = lines[1501], lines[1500]
    (tmp_path / "other.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "words.txt").write_text("glassblower\n")
    done = extend(
        root,
        f"--vocab_file={tmp_path}/other.txt",
        f"--words_file={tmp_path}/words.txt",
        f"--output_dir={tmp_path}/out",
        f"--bert_config_file={tmp_path}/bert_config.json",
        f"--init_checkpoint={tmp_path}/bert_model.ckpt",
    )
    assert done.returncode == 1 and f"other.txt:1501: expected {lines[1501]!r}, as in the vocabulary of" in last_line(
        done
    )


def test_new_words_with_vectors_begin_as_their_images_and_the_others_as_means(root, golden, tmp_path, vocab):
    """Vectors from which the old rows follow by a matrix and a constant: the new words' rows then do too."""
    rng = np.random.default_rng(0)
    checkpoint = tf.train.load_checkpoint(str(golden / "tf1_bert/bert_model.ckpt"))
    was = checkpoint.get_tensor(EMBEDDINGS)
    old = FullTokenizer(str(vocab))
    known = [word for word in old.vocab if word.isalpha() and len(word) > 2][:200]
    width = was.shape[1] + 3  # wider than the embeddings, which are a projection of the vectors
    back, constant = rng.normal(size=(width, was.shape[1])), rng.normal(size=was.shape[1])
    inverse = np.linalg.pinv(back)
    lines = [
        (
            word.capitalize(),
            (was[old.vocab[word]] - constant) @ inverse + rng.normal(size=width) @ (np.eye(width) - back @ inverse),
        )
        for word in known
    ]
    new = rng.normal(size=width)
    lines += [("Glassblower", new), ("glassblower", -new), ("nowhere", new)]
    (tmp_path / "vectors.txt").write_text(
        f"{len(lines)} {width}\n"
        + "".join(f"{word} {' '.join(map(repr, map(float, vector)))}\n" for word, vector in lines)
    )
    (tmp_path / "words.txt").write_text("glassblower\nbrno\n")
    done = extend(
        root,
        f"--vocab_file={vocab}",
        f"--words_file={tmp_path}/words.txt",
        f"--output_dir={tmp_path}/out",
        f"--bert_config_file={golden}/tf1_bert/bert_config.json",
        f"--init_checkpoint={golden}/tf1_bert/bert_model.ckpt",
        f"--vectors={tmp_path}/vectors.txt",
    )
    assert done.returncode == 0, done.stderr
    assert (
        "vectors for 1 of 2 new words (50.0%), fitted to 200 words of the checkpoint; the map explains 100.0%"
        in done.stdout
    )
    now = tf.train.load_checkpoint(str(tmp_path / "out")).get_tensor(EMBEDDINGS)
    ids = FullTokenizer(str(tmp_path / "out/vocab.txt")).vocab
    np.testing.assert_allclose(now[ids["glassblower"]], new @ back + constant, atol=1e-4)
    pieces = old.convert_tokens_to_ids(old.tokenize("brno"))
    np.testing.assert_allclose(now[ids["brno"]], was[pieces].mean(axis=0), rtol=1e-5, atol=1e-7)
    others = [index for index in range(len(was)) if index not in (ids["glassblower"], ids["brno"])]
    np.testing.assert_array_equal(now[others], was[others])


def test_a_cased_vocabulary_keeps_capitals_and_is_not_lower_cased(root, golden, tmp_path):
    cased, out = golden / "vocab_cased.txt", tmp_path / "out"
    size = len(cased.read_text(encoding="utf-8").splitlines())
    (tmp_path / "words.txt").write_text("Glassblower\nglassblower\n")
    (tmp_path / "model.yaml").write_text(
        f"model: {{vocab_size: {size}, hidden_size: 2, num_hidden_layers: 1, num_attention_heads: 1, "
        "intermediate_size: 4}\n"
    )
    (tmp_path / "vectors.txt").write_text("Glassblower 1 0\nglassblower 0 2\n")
    given = (f"--vocab_file={cased}", f"--words_file={tmp_path}/words.txt", f"--output_dir={out}")
    model = (f"--config={tmp_path}/model.yaml", f"--vectors={tmp_path}/vectors.txt")
    (tmp_path / "own.yaml").write_text("tokenizer: {do_lower_case: false}\n")
    (tmp_path / "lower.yaml").write_text("base: lowest.yaml\n")
    (tmp_path / "lowest.yaml").write_text("tokenizer: {do_lower_case: true}\n")
    refused = "vocab_cased.txt: more than 1 % of its entries have capital letters, but text is lower-cased"
    for more, told in (
        (("--do_lower_case",), refused),
        ((f"--config={tmp_path}/lower.yaml",), refused),
        ((f"--config={tmp_path}/own.yaml", "--do_lower_case"), "--do_lower_case=true: text is not lower-cased for"),
    ):
        done = extend(root, *given, *more)
        assert done.returncode == 1 and told in last_line(done)
    done = extend(root, *given, *model)
    assert done.returncode == 0 and "2 new words" in done.stdout, done.stderr
    config, stored = load_config(str(out / "config.yaml")), formats.read(str(out))
    assert config.tokenizer.do_lower_case is False
    rows = stored.weights["embeddings/word_embeddings"][
        [stored.vocab.index(word) for word in ("Glassblower", "glassblower")]
    ]
    assert rows[0, 0] > 0 == rows[0, 1] and rows[1, 1] == pytest.approx(2 * rows[0, 0]) and rows[1, 0] == 0
    done = extend(
        root, *given[:2], f"--output_dir={tmp_path}/flag", "--nodo_lower_case", f"--config={tmp_path}/lower.yaml"
    )
    assert done.returncode == 0 and load_config(str(tmp_path / "flag/config.yaml")).tokenizer.do_lower_case is False, (
        done.stderr
    )


def begin(root, vocab, tmp_path, lines, *more, header=""):
    """Begins a model of 8 numbers with vectors; returns how the command ended, and the embeddings."""
    (tmp_path / "vectors.txt").write_text(
        header + "".join(f"{word} {' '.join(map(repr, map(float, vector)))}\n" for word, vector in lines)
    )
    (tmp_path / "model.json").write_text(
        '{"vocab_size": 3000, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, '
        '"intermediate_size": 16, "initializer_range": 0.1, "max_position_embeddings": 16}'
    )
    out = tmp_path / f"out{len(list(tmp_path.glob('out*')))}"
    config = [] if more else [f"--bert_config_file={tmp_path}/model.json"]
    done = extend(
        root, f"--vocab_file={vocab}", f"--vectors={tmp_path}/vectors.txt", f"--output_dir={out}", *config, *more
    )
    return done, formats.read(str(out)) if done.returncode == 0 else None


@pytest.mark.parametrize("width", [3, 8, 20])
def test_a_model_from_nothing_begins_with_the_vectors_of_its_words(root, tmp_path, vocab, width):
    rng, ids = np.random.default_rng(0), FullTokenizer(str(vocab)).vocab
    words = [word for word in ids if word.isalpha() and len(word) > 2][:40]
    vectors = 5 * rng.normal(size=(40, width))
    lines = [
        *zip(words, vectors),
        (words[0], -vectors[0]),
        ("nowhere", vectors[1]),
        ("##s", vectors[2]),
        ("[MASK]", vectors[3]),
    ]
    done, stored = begin(root, vocab, tmp_path, lines, header=f"{len(lines)} {width}\n" if width == 8 else "")
    assert done.returncode == 0, done.stderr
    total = sum(
        not word.startswith("##") and not (word.startswith("[") and word.endswith("]") and len(word) > 1)
        for word in ids
    )
    assert f"vectors for 40 of {total} words of the vocabulary ({40 / total:.1%})" in done.stdout
    assert (f"projected from {width} to 8 numbers by a random orthonormal matrix" in done.stdout) == (width != 8)
    table = stored.weights["embeddings/word_embeddings"]
    rows = table[[ids[word] for word in words]]
    assert np.sqrt(np.mean(rows**2)) == pytest.approx(0.1, rel=1e-5)
    if width <= 8:  # angles and relative lengths stay
        factor = np.linalg.norm(rows[0]) / np.linalg.norm(vectors[0])
        np.testing.assert_allclose(rows @ rows.T, factor**2 * vectors @ vectors.T, rtol=1e-4, atol=1e-5)
    if width == 8:
        np.testing.assert_allclose(rows, factor * vectors, rtol=1e-5, atol=1e-6)
    others = [index for index in range(3000) if index not in {ids[word] for word in words}]
    _, other = begin(root, vocab, tmp_path, list(zip(words, rng.normal(size=(40, width)))))
    np.testing.assert_array_equal(table[others], other.weights["embeddings/word_embeddings"][others])
    for name in set(stored.weights) - {"embeddings/word_embeddings"}:
        np.testing.assert_array_equal(stored.weights[name], other.weights[name])
    assert stored.config.hidden_size == 8 and stored.head == "pretraining" and stored.vocab[ids[words[0]]] == words[0]
    if width > 8:  # the projection is a function of the seed
        assert not (
            begin(root, vocab, tmp_path, lines, f"--bert_config_file={tmp_path}/model.json", "--random_seed=2")[
                1
            ].weights["embeddings/word_embeddings"]
            == table
        ).all()


def test_a_yaml_begins_too_and_words_may_be_added(root, tmp_path, vocab):
    (tmp_path / "run.yaml").write_text(
        "model: {vocab_size: 3000, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, "
        "intermediate_size: 16}\nseed: 7\n"
    )
    (tmp_path / "other.json").write_text('{"hidden_size": 8, "num_attention_heads": 2, "vocab_size": 3001}')
    (tmp_path / "words.txt").write_text("\n".join(["glassblower", "thermometers", "brno"]))
    done, stored = begin(
        root,
        vocab,
        tmp_path,
        [("the", np.ones(8)), ("brno", -np.ones(8))],
        f"--config={tmp_path}/run.yaml",
        f"--words_file={tmp_path}/words.txt",
    )
    assert done.returncode == 0 and "vectors for 2 of" in done.stdout, done.stderr
    assert stored.config.vocab_size == 3001 and load_config(str(tmp_path / "out0/config.yaml")).seed == 7
    ids, table = FullTokenizer(str(tmp_path / "out0/vocab.txt")).vocab, stored.weights["embeddings/word_embeddings"]
    np.testing.assert_allclose(table[ids["the"]], -table[ids["brno"]])
    done = extend(
        root,
        f"--vocab_file={tmp_path}/out0/vocab.txt",
        f"--output_dir={tmp_path}/more",
        f"--init_checkpoint={tmp_path}/out0",
        f"--words_file={tmp_path}/words.txt",
        f"--bert_config_file={tmp_path}/other.json",
    )
    assert (
        done.returncode == 1
        and "expected none, because" in last_line(done)
        and "has its own configuration" in last_line(done)
    )
    done, _ = begin(root, vocab, tmp_path, [("nowhere", np.ones(8))])
    assert (
        done.returncode == 1
        and "--vectors: expected vectors for some words of the vocabulary, got none" in last_line(done)
    )
    assert not (tmp_path / "out1").exists()
