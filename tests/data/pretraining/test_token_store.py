"""The token store: 2018's reading of text, in any number of chunks and workers, and kept for another time."""

import json

import numpy as np
import pytest

from official_bert.data.pretraining import token_store
from official_bert.text.fast_tokenization import FastTokenizer
from official_bert.text.tokenization import FullTokenizer

ODD = [
    "It rained.\r\n",
    "\n",
    " \t\u3000\n",
    "Nobody knew; nobody asked.\n",
    "\u200b\n",
    "\x1c\n",
    "The door\rclosed.\n",
    "A lantern fell \u2028 and another.\n",
    "\ufeff\n",
    "Señora Núñez 中文 misplaced the harbour ledger.\n",
    "\n\n",
]


@pytest.fixture(scope="module")
def vocab_file(golden):
    return str(golden / "vocab_uncased.txt")


@pytest.fixture(scope="module")
def tokenizer(vocab_file):
    return FastTokenizer(vocab_file)


@pytest.fixture(scope="module")
def plain(vocab_file):
    return FullTokenizer(vocab_file)


def build(folder, paths, vocab_file, tokenizer, workers=1, bad_text="error", files_end=False):
    description = token_store.describe([str(path) for path in paths], vocab_file, True, bad_text, files_end)
    return token_store.build_store(str(folder), description, tokenizer, workers)


def documents_of(store):
    sentences = [
        store.tokens[first:last].tolist() for first, last in zip(store.sentence_starts, store.sentence_starts[1:])
    ]
    return [sentences[first:last] for first, last in zip(store.document_starts, store.document_starts[1:])]


def plain_documents(paths, tokenizer, files_end=False):
    """2018's `create_training_instances`: a blank line ends a document, a line without a token is nothing."""
    documents = [[]]
    for path in paths:
        if files_end:
            documents.append([])
        for line in path.read_bytes().decode("utf-8", "replace").split("\n"):
            # The end of a file is no line of its own; with files that do not end documents it would be a blank one.
            documents[-1].append(line.strip())
        documents[-1].pop() if documents[-1] and documents[-1][-1] == "" else None
    found = []
    for part in documents:
        found.append([])
        for line in part:
            if not line:
                found.append([])
            tokens = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(line))
            if tokens:
                found[-1].append(tokens)
    return [document for document in found if document]


def odd_files(folder, seed=0, files=3, lines=60):
    rng = np.random.default_rng(seed)
    paths = [folder / f"text-{number}" for number in range(files)]
    for path in paths:
        text = "".join(ODD[index] for index in rng.integers(0, len(ODD), lines))
        path.write_bytes(text.encode() if rng.random() < 0.5 else text.rstrip("\n").encode())
    return paths


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("files_end", [False, True])
def test_documents_are_those_of_2018_for_any_size_of_chunks(
    tmp_path, monkeypatch, vocab_file, tokenizer, plain, chunk_bytes, files_end
):
    monkeypatch.setattr(token_store, "CHUNK_BYTES", chunk_bytes)
    paths = odd_files(tmp_path, seed=chunk_bytes)
    store = build(tmp_path / "store", paths, vocab_file, tokenizer, 2, files_end=files_end)
    assert documents_of(store) == plain_documents(paths, plain, files_end)


def test_a_document_may_go_on_in_the_next_file_unless_files_end_them(tmp_path, vocab_file, tokenizer):
    (tmp_path / "a").write_text("It rained.\n\nNobody knew.")
    (tmp_path / "b").write_text("The door closed.\n\nA lantern fell.\n")
    (tmp_path / "c").write_text("")
    paths = [tmp_path / name for name in "abc"]
    joined = build(tmp_path / "joined", paths, vocab_file, tokenizer)
    assert [len(document) for document in documents_of(joined)] == [1, 2, 1]
    apart = build(tmp_path / "apart", paths, vocab_file, tokenizer, files_end=True)
    assert [len(document) for document in documents_of(apart)] == [1, 1, 1, 1]
    assert apart.file_starts.tolist() == [0, 2, 4, 4]


@pytest.mark.parametrize("longest", [1, 30, 1 << 22])
def test_a_long_line_is_one_sentence_however_it_is_cut(tmp_path, monkeypatch, vocab_file, tokenizer, plain, longest):
    monkeypatch.setattr(token_store, "CHUNK_BYTES", 16)
    monkeypatch.setattr(token_store, "LONGEST_LINE", longest)
    line = "the quartermaster repainted the harbour ledger ΟΔΟΣ Σ. " * 50
    path = tmp_path / "text"
    path.write_text(f"{line}\n\n{'   ' * 40}\nIt rained.{' ' * 100}\n{line}")
    store = build(tmp_path / "store", [path], vocab_file, tokenizer, 2)
    assert documents_of(store) == plain_documents([path], plain)
    assert [len(document) for document in documents_of(store)] == [1, 2]


def test_bad_text_is_named_by_its_place_in_the_file(tmp_path, monkeypatch, vocab_file, tokenizer):
    monkeypatch.setattr(token_store, "CHUNK_BYTES", 32)
    path = tmp_path / "text"
    text = b"It rained.\n" * 20
    path.write_bytes(text + b"Nobody \xe4 knew.\n" + text)
    with pytest.raises(ValueError, match=rf"text: not valid UTF-8 at byte offset {len(text) + 7} .*replace"):
        build(tmp_path / "store", [path], vocab_file, tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    store = build(tmp_path / "store", [path], vocab_file, tokenizer, bad_text="replace")
    assert store.num_sentences == 41


def test_a_store_is_found_again_and_refused_for_other_text(tmp_path, vocab_file, tokenizer):
    path = tmp_path / "text"
    path.write_text("It rained.\n\nNobody knew.\n")
    built = build(tmp_path / "store", [path], vocab_file, tokenizer)
    description = token_store.describe([str(path)], vocab_file, True, "error", False)
    found = token_store.open_store(str(tmp_path / "store"), description)
    assert documents_of(found) == documents_of(built)
    assert token_store.open_store(str(tmp_path / "nowhere"), description) is None
    path.write_text("It rained and rained.\n\nNobody knew.\n")
    changed = token_store.describe([str(path)], vocab_file, True, "error", False)
    with pytest.raises(ValueError, match="made with another set of files"):
        token_store.open_store(str(tmp_path / "store"), changed)


def test_a_store_that_another_process_has_just_made_is_taken(tmp_path, vocab_file, tokenizer):
    (tmp_path / "text").write_bytes(b"one line\n\nanother\n")
    description = token_store.describe([str(tmp_path / "text")], vocab_file, True, "error", False)
    told = [[], []]
    made, taken = (
        token_store.build_store(str(tmp_path / "store"), description, tokenizer, progress=done.append) for done in told
    )
    assert (
        told[0]
        and not told[1]
        and taken.tokens.tolist() == made.tokens.tolist()
        and not (tmp_path / "store.work").exists()
    )


def test_a_damaged_store_is_refused(tmp_path, vocab_file, tokenizer):
    path = tmp_path / "text"
    path.write_text("It rained.\n\nNobody knew.\n")
    build(tmp_path / "store", [path], vocab_file, tokenizer)
    description = token_store.describe([str(path)], vocab_file, True, "error", False)
    tokens = tmp_path / "store" / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"tokens\.bin: expected [0-9]+ bytes"):
        token_store.open_store(str(tmp_path / "store"), description)
    (tmp_path / "store" / "store.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        token_store.open_store(str(tmp_path / "store"), description)


@pytest.mark.parametrize("meta", ["{}", "[]", '"text"', '{"made_of": 3}', None])
def test_a_store_whose_description_says_nothing_is_refused(tmp_path, vocab_file, tokenizer, meta):
    path = tmp_path / "text"
    path.write_text("It rained.\n\nNobody knew.\n")
    build(tmp_path / "store", [path], vocab_file, tokenizer)
    description = token_store.describe([str(path)], vocab_file, True, "error", False)
    if meta is None:
        (tmp_path / "store" / "documents.bin").unlink()
    else:
        (tmp_path / "store" / "store.json").write_text(meta)
    with pytest.raises(ValueError, match="store: store.json is damaged or another file is missing"):
        token_store.open_store(str(tmp_path / "store"), description)


@pytest.mark.parametrize("damage", [False, True])
def test_a_stopped_store_goes_on_at_its_last_save(tmp_path, monkeypatch, vocab_file, tokenizer, damage):
    """The bytes are those of a run that was never stopped, and what was encoded is not encoded again."""
    monkeypatch.setattr(token_store, "CHUNK_BYTES", 50)
    monkeypatch.setattr(token_store, "LONGEST_LINE", 60)
    monkeypatch.setattr(token_store, "SECONDS_BETWEEN_SAVES", 0.0)
    paths = odd_files(tmp_path, seed=4)
    build(tmp_path / "whole", paths, vocab_file, tokenizer)
    encoded = []

    def count(tokenizer, chunk, replace, encode=token_store._encode_chunk):
        encoded.append(chunk)
        return encode(tokenizer, chunk, replace)

    monkeypatch.setattr(token_store, "_encode_chunk", count)
    description = token_store.describe([str(path) for path in paths], vocab_file, True, "error", False)
    done = [0]

    def stop(size):
        done[0] += 1
        if done[0] % 7 == 0:
            raise SystemExit("stopped")

    for _ in range(3):
        done[0] = 7 * (done[0] // 7)
        with pytest.raises(SystemExit):
            token_store.build_store(str(tmp_path / "store"), description, tokenizer, 1, stop)
        done[0] = 0 if damage else done[0]
        assert not (tmp_path / "store").exists()
    if damage:
        tokens = tmp_path / "store.work" / "store" / "tokens.bin"
        tokens.write_bytes(b"\0" + tokens.read_bytes()[1:])
    first = len(encoded)
    token_store.build_store(str(tmp_path / "store"), description, tokenizer, 1)
    chunks = sum(1 for path in paths for _ in token_store.split_file(str(path)))
    assert len(encoded) - first == chunks if damage else len(encoded) - first < chunks
    for name in ("tokens.bin", "sentences.bin", "documents.bin", "store.json"):
        assert (tmp_path / "store" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "store.work").exists()


def test_ids_take_two_bytes_where_the_vocabulary_lets_them(tmp_path, tokenizer, vocab_file, golden):
    store = build(tmp_path / "small", [golden / "text_a.txt"], vocab_file, tokenizer)
    assert store.tokens.dtype == np.uint16
    large = tmp_path / "vocab.txt"
    words = (golden / "vocab_uncased.txt").read_text().splitlines()
    large.write_text("\n".join([*words[:15], *(f"extra{n}" for n in range(70_000)), *words[15:]]))
    wide = build(tmp_path / "large", [golden / "text_a.txt"], str(large), FastTokenizer(str(large)))
    assert wide.tokens.dtype == np.uint32 and wide.tokens.max() > 2**16
    np.testing.assert_array_equal(np.where(wide.tokens >= 15, wide.tokens - 70_000, wide.tokens), store.tokens)
    meta = json.loads((tmp_path / "large" / "store.json").read_text())
    assert meta["tokens"] == {"dtype": "uint32", "length": len(store.tokens)}
