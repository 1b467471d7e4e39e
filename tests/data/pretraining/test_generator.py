"""From a store to files: the sharded order, counts, and memory that does not grow with the corpus."""

import dataclasses

import numpy as np
import pytest

from official_bert.data.pretraining import generator, token_store
from official_bert.data.pretraining.generator import Generator
from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.data.pretraining.scratch import Scratch
from official_bert.data.record_files import records
from official_bert.text.fast_tokenization import FastTokenizer


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FastTokenizer(str(golden / "vocab_uncased.txt"))


@pytest.fixture
def make(tmp_path, tokenizer, golden):
    """A generator over texts."""

    def call(*texts, config=None, seed=1):
        paths = []
        for number, text in enumerate(texts):
            paths.append(str(tmp_path / f"text-{number}"))
            (tmp_path / f"text-{number}").write_bytes(text)
        description = token_store.describe(paths, str(golden / "vocab_uncased.txt"), True, "error", True)
        store = token_store.build_store(
            str(tmp_path / f"store-{len(list(tmp_path.iterdir()))}"), description, tokenizer
        )
        config = config or InstanceConfig(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=2)
        return Generator(store, config, VocabularyFacts.of(tokenizer.tokenizer), seed, Scratch(str(tmp_path)))

    return call


@pytest.fixture
def texts(golden):
    return [(golden / f"text_{name}.txt").read_bytes() for name in "ab"]


def read(path):
    return list(records.read_instances([str(path)]))


def test_each_document_is_in_one_shard_and_shards_are_about_even(make, texts):
    store = make(*texts).store
    for shards in (1, 2, 5, 40):
        parts = [generator.shard_documents(store.file_starts, shard, shards) for shard in range(shards)]
        assert sorted(np.concatenate(parts).tolist()) == list(range(store.num_documents))
        assert max(map(len, parts)) - min(map(len, parts)) <= 2


def test_a_shard_depends_on_its_own_documents_only(make, texts, tmp_path):
    first, second = (tmp_path / name for name in ("first", "second"))
    make(*texts).write([str(first), str(tmp_path / "other")], "sharded")
    documents = [document for text in texts for document in [text.strip().split(b"\n\n")]]
    changed = [
        b"\n\n".join(document if number != 1 else b"It rained.\nNobody knew." for number, document in enumerate(file))
        for file in documents
    ]
    make(changed[0], texts[1]).write([str(second), str(tmp_path / "another")], "sharded")
    assert first.read_bytes() == second.read_bytes()  # document 1 of file 0 lies in shard 1
    assert (tmp_path / "other").read_bytes() != (tmp_path / "another").read_bytes()


def test_seeds_and_shards_draw_different_numbers():
    seeds = {generator.shard_seed(seed, shard) for seed in range(50) for shard in range(50)}
    assert len(seeds) == 2500


def test_a_shard_without_documents_is_a_file_without_records(make, tmp_path):
    paths = [tmp_path / f"out-{shard}" for shard in range(4)]
    counts = make(b"It rained.\nNobody knew.\n\nThe door closed.\nA lantern fell.\n").write(
        [str(path) for path in paths], "sharded"
    )
    sizes = [sum(1 for _ in records.read_records(str(path))) for path in paths]
    assert sizes[2:] == [0, 0] and min(sizes[:2]) > 0 and sum(sizes) == counts.instances


def test_counts_are_those_of_the_files(make, texts, tmp_path):
    for order in ("2018", "sharded"):
        counts = make(*texts).write([str(tmp_path / "a"), str(tmp_path / "b")], order)
        rows = read(tmp_path / "a") + read(tmp_path / "b")
        assert (counts.instances, counts.second_labels) == (
            len(rows),
            sum(int(row["next_sentence_labels"][0]) for row in rows),
        )


def test_unmasked_records_hold_words_and_the_schema(make, texts, tmp_path, tokenizer):
    config = InstanceConfig(max_seq_length=32, dupe_factor=1, masking=None)
    make(*texts, config=config).write([str(tmp_path / "out")])
    vocab = tokenizer.tokenizer.inv_vocab
    for row in read(tmp_path / "out"):
        assert row["schema_version"] == [records.SCHEMA_VERSION]
        tokens = [vocab[index] for index in row["input_ids"] * row["input_mask"]]
        wanted = [int(not token.startswith(("##", "[CLS]", "[SEP]", "[PAD]"))) for token in tokens]
        assert row["word_starts"].tolist() == wanted and "[MASK]" not in tokens


@pytest.mark.parametrize("task, shares", [("nsp", (0.4, 0.75)), ("sop", (0.4, 0.6)), ("none", (0.0, 0.0))])
def test_each_sentence_task_makes_its_labels(make, texts, tmp_path, task, shares):
    config = InstanceConfig(max_seq_length=48, max_predictions_per_seq=7, dupe_factor=5, sentence_task=task)
    make(*texts, config=config).write([str(tmp_path / "out")])
    rows = read(tmp_path / "out")
    assert shares[0] <= np.mean([row["next_sentence_labels"][0] for row in rows]) <= shares[1]
    assert np.mean([row["segment_ids"].any() for row in rows]) == (task != "none")


def lengths_of(path):
    return [int(row["input_mask"].sum()) for row in read(path)]


@pytest.mark.parametrize("task", ["nsp", "sop", "none"])
@pytest.mark.parametrize("order", ["2018", "sharded"])
def test_every_token_is_accounted_for(make, texts, tmp_path, task, order):
    """In, repeated and drawn at random on one side; in records, cut off and without a pair on the other."""
    config = InstanceConfig(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=3, sentence_task=task)
    made = make(*texts, b"\na\n\nb\n", config=config)
    counts = made.write([str(tmp_path / "a"), str(tmp_path / "b")], order)
    assert 3 * len(made.store.tokens) + counts.random_tokens == counts.tokens + counts.truncated + counts.unpaired
    if task != "none":
        assert counts.tokens == sum(length - 3 for name in "ab" for length in lengths_of(tmp_path / name))
    assert counts.unpaired == (6 if task == "sop" else 0)  # two documents of one token, three times
    assert (counts.truncated > 0) == (task != "none") == (len(counts.truncated_examples) == 3)
    assert (counts.random_tokens > 0) == (task == "nsp")
    text = made.store.tokens.tolist()
    for example in counts.truncated_examples:
        assert example in [text[start : start + len(example)] for start in range(len(text))]


def test_documents_that_make_no_instance_are_refused(make, tmp_path):
    config = InstanceConfig(max_seq_length=32, sentence_task="sop", max_predictions_per_seq=5)
    made = make(b"a\n\nb\n", config=config)
    for order in ("2018", "sharded"):
        with pytest.raises(ValueError, match="only one word"):
            made.write([str(tmp_path / "out")], order)
        assert not list(tmp_path.glob("out*"))


@pytest.mark.slow
def test_vocabularies_beyond_16_bits_make_the_same_instances(make, texts, tmp_path, golden):
    """65,536 and more entries take four bytes an id; [MASK] alone as a replacement keeps ids comparable."""
    words = (golden / "vocab_uncased.txt").read_text(encoding="utf-8").splitlines()
    (tmp_path / "large.txt").write_text(
        "\n".join([*words[:15], *(f"extra{n}" for n in range(70_000)), *words[15:]]), encoding="utf-8"
    )
    config = InstanceConfig(
        max_seq_length=32,
        max_predictions_per_seq=5,
        dupe_factor=2,
        masking=MaskingConfig(strategy="whole_word", mask_rate=1.0, keep_rate=0.0, random_rate=0.0),
    )
    small = make(*texts, config=config)
    large_tokenizer = FastTokenizer(str(tmp_path / "large.txt"))
    description = token_store.describe(
        [file["path"] for file in small.store.description["files"]], str(tmp_path / "large.txt"), True, "error", True
    )
    store = token_store.build_store(str(tmp_path / "large"), description, large_tokenizer)
    large = dataclasses.replace(small, store=store, facts=VocabularyFacts.of(large_tokenizer.tokenizer))
    small.write([str(tmp_path / "small.out")])
    large.write([str(tmp_path / "large.out")])
    for row, wide in zip(read(tmp_path / "small.out"), read(tmp_path / "large.out"), strict=True):
        for name, value in wide.items():
            shifted = np.where(value >= 70_015, value - 70_000, value) if name.endswith("_ids") else value
            np.testing.assert_array_equal(shifted, row[name], err_msg=name)


def test_scratch_leaves_no_name_in_its_folder(tmp_path):
    array = Scratch(str(tmp_path)).keep(np.arange(100_000))
    assert array.tolist() == list(range(100_000)) and not list(tmp_path.iterdir())
    assert len(Scratch(str(tmp_path)).keep(np.arange(0))) == 0


def test_a_progress_of_one_is_told_at_the_end_of_each_stage(make, texts, tmp_path):
    told = []
    made = make(*texts)
    object.__setattr__(made, "progress", lambda *stage: told.append(stage))
    made.write([str(tmp_path / "out")])
    assert ("sampling", 1.0) in told and told[-1] == ("writing", 1.0)
    assert all(0 <= share <= 1 for _, share in told)
