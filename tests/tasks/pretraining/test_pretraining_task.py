"""The pre-training task reads records with masks, and masks those without."""

import gzip
import shutil

import made_pretraining
import numpy as np
import pytest
from made_generation import facts_of
from made_pretraining import make_config, write_records
from oracles.records import encode_example, write_tfrecords

from official_bert.config import Config, build
from official_bert.data.record_files import records
from official_bert.long_work import provenance
from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles
from official_bert.tasks.loading import load_task
from official_bert.text.vocab import load_vocab

S, P = 32, 6


@pytest.fixture
def unmasked(tmp_path, golden):
    """Writes two files of records without masks, in the golden records' shapes."""
    rng = np.random.default_rng(0)
    features = records.unmasked_features(S)
    for part in range(2):
        rows = []
        for _ in range(20):
            length = int(rng.integers(10, S + 1))
            ids = np.zeros(S, int)
            ids[:length] = rng.integers(100, 3000, length)
            ids[[0, length // 2, length - 1]] = 12, 13, 13
            mask = (np.arange(S) < length).astype(int)
            rows.append(
                {
                    "input_ids": ids,
                    "input_mask": mask,
                    "segment_ids": (np.arange(S) > length // 2) * mask,
                    "word_starts": (ids > 99).astype(int),
                    "next_sentence_labels": [int(rng.integers(0, 2))],
                    "schema_version": [records.SCHEMA_VERSION],
                }
            )
        write_tfrecords(str(tmp_path / f"part-{part}"), [encode_example(features, row) for row in rows])
    return str(tmp_path / "part-*")


def resolve(pattern, golden, **changes):
    values = {
        "model": {
            "vocab_size": 3000,
            "hidden_size": 4,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "intermediate_size": 4,
        },
        "training": {"batch_size": 8, "eval_batch_size": 8},
        "tokenizer": {"vocab_file": str(golden / "vocab_uncased.txt")},
        "options": {"max_seq_length": S, "max_predictions_per_seq": P},
    }
    files = DataFiles(train_file=pattern, eval_file=pattern)
    return load_task(build(Config, values | changes)).data.resolve(files, TRAIN_AND_EVALUATE)


def rows_of(dataset):
    """Returns {(original ids of the row): its masked places} over batches."""
    found = {}
    for batch in dataset:
        batch = {name: value.numpy() for name, value in batch.items()}
        ids = batch["input_ids"].copy()
        used = batch["masked_lm_weights"] > 0
        for row in range(len(ids)):
            places = batch["masked_lm_positions"][row][used[row]]
            ids[row, places] = batch["masked_lm_ids"][row][used[row]]
            found[tuple(ids[row])] = tuple(places)
    return found


def test_whole_words_that_are_single_tokens_are_a_warning_where_records_are_masked_anew(
    unmasked, golden, tmp_path, caplog
):
    def warned(pattern, strategy):
        caplog.clear()
        resolve(
            pattern,
            golden,
            options={"max_seq_length": S, "max_predictions_per_seq": P, "masking": {"strategy": strategy}},
        )
        return "part-0: only 0.0% of the tokens continue a word (##), so masking whole words hardly" in caplog.text

    assert warned(unmasked, "whole_word") and not warned(unmasked, "token")
    row = {
        "input_ids": [12, 200, 300, 13] + [0] * (S - 4),
        "input_mask": [1] * 4 + [0] * (S - 4),
        "segment_ids": [0] * S,
        "word_starts": [0, 1, 0, 0] + [0] * (S - 4),
        "next_sentence_labels": [0],
        "schema_version": [records.SCHEMA_VERSION],
    }
    write_tfrecords(str(tmp_path / "english"), [encode_example(records.unmasked_features(S), row)])
    assert not warned(str(tmp_path / "english"), "whole_word")


def test_records_of_another_vocabulary_are_refused(unmasked, golden, tmp_path):
    path = str(tmp_path / "part-0")
    own = facts_of(load_vocab(str(golden / "vocab_uncased.txt"))).digest
    provenance.write_origin(path, {"vocabulary": own})
    resolve(path, golden)
    provenance.write_origin(
        path, {"vocabulary": facts_of({"[CLS]": 0, "[SEP]": 1, "[MASK]": 2, "[PAD]": 3, "[UNK]": 4}).digest}
    )
    with pytest.raises(
        ValueError, match=r"part-0: its records were made with another vocabulary; expected --vocab_file"
    ):
        resolve(path, golden)


def test_records_of_text_that_was_not_lower_cased_are_refused_unless_the_run_agrees(unmasked, golden, tmp_path):
    path = str(tmp_path / "part-0")
    provenance.write_origin(path, {"do_lower_case": False})
    with pytest.raises(
        ValueError,
        match=r"part-0: its records were made with --do_lower_case=False, but tokenizer.do_lower_case .* True",
    ):
        resolve(path, golden)
    resolve(path, golden, tokenizer={"vocab_file": str(golden / "vocab_uncased.txt"), "do_lower_case": False})


def test_evaluation_on_training_records_is_a_warning_by_any_name(tmp_path, caplog):
    train, other = write_records(tmp_path / "train", 9), write_records(tmp_path / "other", 9, seed=1)
    made_pretraining.resolve(make_config(), train, other)
    assert not caplog.text
    shutil.copy(train, tmp_path / "copy")
    (tmp_path / "link").symlink_to(train)
    for name in ("train", "copy", "link"):
        made_pretraining.resolve(make_config(), train, f"{other},{tmp_path / name}")
        assert f"1 of 2 files of evaluation records are training records, the first is {tmp_path / name}" in caplog.text
        caplog.clear()


def test_files_of_two_generations_and_masks_that_are_not_read_are_warnings(tmp_path, caplog):
    for name in ("train-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002"):
        provenance.write_origin(write_records(tmp_path / name, 9), {"masking": {"rate": 0.15, "strategy": "token"}})
    made_pretraining.resolve(make_config(options={"masking": {"rate": 0.15}}), f"{tmp_path}/train-*-of-00002")
    assert not caplog.text
    made_pretraining.resolve(make_config(options={"masking": {"rate": 0.4}}), f"{tmp_path}/train-*")
    shards, masks = caplog.messages
    assert shards.startswith(f"{tmp_path}/train: files of 1 and of 2 are read together")
    assert "have masks already, so config.options.masking (rate) is not read" in masks


def test_steps_beside_epochs_are_refused(tmp_path):
    path = write_records(tmp_path / "train", 9)
    with pytest.raises(ValueError, match="expected steps or epochs, got 20 steps and 2 epochs"):
        made_pretraining.resolve(make_config(training={"epochs": 2.0}), path)
    made_pretraining.resolve(make_config(training={"epochs": 2.0, "steps": 0}), path)


def test_shards_without_records_among_others_are_taken_with_a_warning(unmasked, golden, tmp_path, caplog):
    whole = resolve(unmasked, golden)
    assert "no record" not in caplog.text
    (tmp_path / "part-0a").write_bytes(b"")
    (tmp_path / "part-2").write_bytes(gzip.compress(b""))
    resolved = resolve(unmasked, golden)
    assert f"{unmasked}: no record in 2 of 4 files, the first is {tmp_path}/part-0a" in caplog.text
    for mine, wanted in ((resolved.train, whole.train), (resolved.held_out.source, whole.held_out.source)):
        assert mine.content == wanted.content and rows_of(mine.dataset().take(5)) == rows_of(wanted.dataset().take(5))


def test_records_without_masks_are_masked_anew_each_epoch_and_alike_after_a_resume(unmasked, golden):
    source = resolve(unmasked, golden).train
    epochs = [
        rows_of(source.dataset(epoch * source.batches_per_epoch).take(source.batches_per_epoch)) for epoch in range(2)
    ]
    assert len(epochs[0]) == 40 and set(epochs[0]) == set(epochs[1])
    assert sum(epochs[0][row] != epochs[1][row] for row in epochs[0]) > 30
    through = rows_of(source.dataset(0).skip(source.batches_per_epoch).take(source.batches_per_epoch))
    assert through == epochs[1]


def test_shards_without_a_record_are_read_beside_others(unmasked, golden, tmp_path):
    for name in ("part-2", "part-00000-of-00002"):
        (tmp_path / name).write_bytes(b"")
    assert resolve(unmasked, golden).train.size == 40
    with pytest.raises(ValueError, match="part-2: expected records, the file holds none"):
        resolve(str(tmp_path / "part-2"), golden)


def test_evaluation_masks_records_without_masks_the_same_each_time(unmasked, golden):
    source, again = (resolve(unmasked, golden).held_out.source for _ in range(2))
    assert rows_of(source.dataset()) == rows_of(source.dataset()) == rows_of(again.dataset())


def test_options_say_how_records_without_masks_are_masked(unmasked, golden):
    options = {"max_seq_length": S, "max_predictions_per_seq": P, "masking": {"rate": 0.01}}
    found = rows_of(resolve(unmasked, golden, options=options).held_out.source.dataset())
    assert {len(places) for places in found.values()} == {1}


def test_masks_that_the_objective_or_the_strategy_leaves_out_are_warnings(unmasked, golden, caplog):
    lengths, tiny = (
        {"max_seq_length": S, "max_predictions_per_seq": P},
        {"vocab_size": 3000, "hidden_size": 4, "num_attention_heads": 1},
    )
    left_to_right = tiny | {"num_hidden_layers": 1, "attention": "left_to_right"}
    resolve(unmasked, golden, options=lengths | {"masking": {"strategy": "span", "span_longest": 3}})
    resolve(unmasked, golden, options=lengths | {"masking": {"rate": 0.2, "span_longest": 3}})
    resolve(
        unmasked, golden, model=left_to_right, options=lengths | {"objective": "next_token", "masking": {"rate": 0.2}}
    )
    assert [told for told in caplog.messages if "masking" in told] == [
        "config.options.masking (span_longest) is not read: its strategy is token, not span",
        "config.options.masking (rate) is not read: objective next_token masks nothing",
    ]
    caplog.clear()
    resolve(unmasked, golden, options=lengths | {"masking": {"rate": 0.5}})
    assert [told for told in caplog.messages if "masking" in told] == [
        f"config.options.masking: at most max_predictions_per_seq {P} of {S} tokens are predicted, {P / S:.1%}, "
        "although the share to predict is 50.0%"
    ]


def test_masked_words_need_room_for_a_prediction(unmasked, golden):
    with pytest.raises(ValueError, match="max_predictions_per_seq: expected at least 1, got 0"):
        resolve(unmasked, golden, options={"max_seq_length": S, "max_predictions_per_seq": 0})


def test_what_does_not_fit_is_refused(unmasked, golden, tmp_path):
    with pytest.raises(ValueError, match="--vocab_file"):
        resolve(unmasked, golden, tokenizer={})
    with pytest.raises(ValueError, match=r"max_seq_length is 64, but its records hold 32"):
        resolve(unmasked, golden, options={"max_seq_length": 64})
    arrays = np.load(golden / "generator_short.npz")
    features = records.pretraining_features(32, 5)
    write_tfrecords(str(tmp_path / "part-2"), [encode_example(features, {name: arrays[name][0] for name in arrays})])
    with pytest.raises(ValueError, match="with masks or without"):
        options = {"max_seq_length": S, "max_predictions_per_seq": 5}
        resolve(unmasked, golden, options=options)
