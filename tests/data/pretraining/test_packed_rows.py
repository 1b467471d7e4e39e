"""Packed rows: the algorithm against one that is written from its description, rows by hand, and equal losses and
gradients.
"""

import collections
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import S, V, data_files, make_config, resolve, weights_after_two_steps, write_records
from oracles.records import encode_example, write_tfrecords

from official_bert.data.pretraining import packing
from official_bert.data.pretraining.packing import Packing, pack, unpack
from official_bert.data.record_files import records
from official_bert.runs import whole_run
from official_bert.tasks.loading import load_task
from official_bert.training.machines.cluster import Placement
from official_bert.training.machines.distribution import own_precision

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def shortest_pack_first(sizes, room, most):
    """How full the rows become: each size, the longest first, goes to the emptiest row. (Which of equally full ones
    does not matter.)
    """
    rows = []
    for size in sorted(sizes, reverse=True):
        open_rows = [row for row in rows if len(row) < most and sum(row) < room]
        emptiest = min(open_rows, key=sum, default=None)
        if emptiest is None or sum(emptiest) + size > room:
            rows.append([size])
        else:
            emptiest.append(size)
    return collections.Counter(map(sum, rows))


@pytest.mark.parametrize("most", [1, 2, 3, 20])
def test_rows_are_those_of_shortest_pack_first(most):
    rng = np.random.default_rng(most)
    for room in (5, 16, 40):
        sizes = rng.integers(1, room + 1, 60)
        rows = pack(sizes, room, most)
        counts, sums = np.bincount(rows), np.bincount(rows, sizes)
        assert counts.min() > 0 and counts.max() <= most and sums.max() <= room
        wanted = shortest_pack_first(sizes.tolist(), room, most)
        # With few instances a row, equally full rows differ in how many more they may take.
        assert collections.Counter(sums) == wanted if most == 20 else len(sums) <= sum(wanted.values()) + 1


def test_lengths_of_wikipedia_leave_less_than_one_percent_of_padding():
    rng = np.random.default_rng(0)
    sizes = np.where(rng.random(8192) < 0.55, 512, rng.integers(5, 513, 8192))
    rows = pack(sizes, 512, 8)
    assert sizes.sum() / ((rows.max() + 1) * 512) > 0.99


def test_two_instances_in_a_row_and_one_in_another():
    packing = Packing((), 8, 2, 2)
    instances = {
        "input_ids": [[2, 7, 3, 0, 0, 0, 0, 0], [2, 8, 4, 3, 0, 0, 0, 0], [2, 4, 9, 9, 9, 9, 3, 0]],
        "input_mask": [[1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 0]],
        "segment_ids": [[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 0]],
        "masked_lm_positions": [[1, 0], [1, 2], [1, 0]],
        "masked_lm_ids": [[7, 0], [8, 6], [5, 0]],
        "masked_lm_weights": [[1.0, 0.0], [1.0, 1.0], [1.0, 0.0]],
        "next_sentence_labels": [[1], [0], [1]],
    }
    wanted = {
        "input_ids": [[2, 7, 3, 2, 8, 4, 3, 0], [0] * 8, [2, 4, 9, 9, 9, 9, 3, 0]],
        "input_mask": [[1, 1, 1, 1, 1, 1, 1, 0], [0] * 8, [1, 1, 1, 1, 1, 1, 1, 0]],
        "segment_ids": [[0, 0, 0, 0, 0, 1, 1, 0], [0] * 8, [0, 0, 0, 1, 1, 1, 1, 0]],
        "position_ids": [[0, 1, 2, 0, 1, 2, 3, 0], [0] * 8, [0, 1, 2, 3, 4, 5, 6, 0]],
        "instance_ids": [[1, 1, 1, 2, 2, 2, 2, 0], [0] * 8, [1, 1, 1, 1, 1, 1, 1, 0]],
        "cls_positions": [[0, 3], [0, 0], [0, 0]],
        "masked_lm_positions": [[1, 4, 5, 0], [0] * 4, [1, 0, 0, 0]],
        "masked_lm_ids": [[7, 8, 6, 0], [0] * 4, [5, 0, 0, 0]],
        "masked_lm_weights": [[1.0, 1.0, 1.0, 0.0], [0.0] * 4, [1.0, 0.0, 0.0, 0.0]],
        "next_sentence_labels": [[1, 0], [0, 0], [1, 0]],
        "instance_weights": [[1.0, 1.0], [0.0, 0.0], [1.0, 0.0]],
    }
    found = packing.arrange({name: tf.constant(value) for name, value in instances.items()}, tf.constant([0, 0, 2]), 3)
    assert {name: value.numpy().tolist() for name, value in found.items()} == wanted
    assert {feature.name: feature.length for feature in packing.row_features} == {
        name: len(value[0]) for name, value in wanted.items()
    }
    back, rows = unpack({name: value.numpy() for name, value in found.items()})
    assert rows.tolist() == [0, 0, 2]
    for name, value in instances.items():
        np.testing.assert_array_equal(back[name][:, : len(value[0])], value, err_msg=name)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("packing") / "train", 150, shortest=4)


def resolved(path, pack, **sections):
    return resolve(
        make_config(model=WITHOUT_DROPOUT, options={"pack": pack, "max_instances_per_row": 3}, **sections), path, path
    )


def instances_of(source, batches):
    """The instances of batches, as hashable rows without padding."""
    found = []
    for batch in source.dataset().take(batches):
        rows = {name: value.numpy() for name, value in batch.items()}
        real = rows["example_weights"] > 0
        rows = {name: value[real] for name, value in rows.items()}
        masked = unpack(rows)[0] if "instance_ids" in rows else rows
        found += [
            tuple(masked["input_ids"][row][masked["input_mask"][row] > 0].tolist())
            + tuple(masked["masked_lm_ids"][row][masked["masked_lm_weights"][row] > 0].tolist())
            + tuple(masked["next_sentence_labels"][row].tolist())
            for row in range(len(masked["input_ids"]))
        ]
    return found


def test_every_instance_is_in_one_row_of_an_epoch_and_evaluation_has_them_all(path):
    plain, packed = resolved(path, False).held_out.source, resolved(path, True).held_out.source
    assert packed.batches_per_epoch < plain.batches_per_epoch
    wanted = collections.Counter(instances_of(plain, plain.batches_per_epoch))
    assert collections.Counter(instances_of(packed, packed.batches_per_epoch)) == wanted and sum(wanted.values()) == 150
    train = resolved(path, True, training={"batch_size": 1}).train
    first = instances_of(train, train.batches_per_epoch)
    assert collections.Counter(first) == wanted
    both = instances_of(train, 2 * train.batches_per_epoch)
    assert collections.Counter(both[len(first) :]) == wanted and both[len(first) :] != first


def test_a_resumed_run_and_workers_see_the_same_rows(path):
    source = resolved(path, True).train

    def ids(*arguments):
        return [batch["input_ids"].numpy() for batch in source.dataset(*arguments).take(4)]

    through, halves = ids(), zip(ids(0, 2, 0), ids(0, 2, 1))
    np.testing.assert_array_equal(ids(2)[:2], through[2:])
    np.testing.assert_array_equal([np.concatenate(parts) for parts in halves], through)


def test_losses_and_gradients_are_those_of_single_rows(path):
    """Over the same 150 instances: mean losses, and the gradient of their sum for every weight."""
    found = {}
    for packed in (False, True):
        keras.utils.set_random_seed(3)
        run = resolved(path, packed)
        sums, grads = collections.defaultdict(float), None
        for batch in run.held_out.source.dataset():
            with tf.GradientTape() as tape:
                losses = run.task.objective.losses(run.model(batch, training=True), batch)
                total = tf.add_n([loss for loss, _ in losses.values()])
            parts = [tf.convert_to_tensor(part).numpy() for part in tape.gradient(total, run.model.trainable_variables)]
            grads = parts if grads is None else [one + other for one, other in zip(grads, parts)]
            for name, (loss, weight) in losses.items():
                sums[name] += float(loss)
                sums[f"{name} weight"] += float(weight)
                assert float(weight) == float(run.task.objective.weights(batch)[name])
            for name, (right, _) in run.task.objective.counters(run.model(batch), batch).items():
                sums[name] += float(right)
        found[packed] = sums, grads
    assert found[True][0] == pytest.approx(found[False][0], rel=1e-6) and found[True][0]["nsp weight"] == 150
    for one, other in zip(found[True][1], found[False][1]):
        np.testing.assert_allclose(one, other, atol=1e-5 * max(1.0, np.abs(other).max()))


def test_a_step_of_training_takes_packed_rows(path):
    run = resolved(path, True)
    batch = next(iter(run.train.dataset()))
    assert {name: (value.shape, value.dtype) for name, value in batch.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in run.task.data.batch_spec(32).items()
    }
    assert batch["instance_weights"].numpy().sum() > 32


@pytest.mark.slow
def test_lengths_are_counted_once_and_again_if_they_are_damaged(path, monkeypatch):
    def rows():
        return instances_of(resolved(path, True).train, 2)

    wanted = rows()
    file = pathlib.Path(path).parent / f".{pathlib.Path(path).name}{packing.SUFFIX}"
    assert file.stat().st_size == 512 + 150 * 8
    counted = []
    count = packing._count
    monkeypatch.setattr(packing, "_count", lambda *arguments: counted.append(1) or count(*arguments))
    assert rows() == wanted and not counted
    data = bytearray(file.read_bytes())
    data[600] ^= 1
    file.write_bytes(data)
    assert rows() == wanted and counted
    assert rows() == wanted and len(counted) == 1


def test_records_without_masks_are_masked_alone_and_then_packed(tmp_path):
    """Each instance has the masks that it has in a row of its own."""
    rng = np.random.default_rng(0)
    features = records.unmasked_features(S)

    def rows():
        for _ in range(60):
            length = int(rng.integers(4, S + 1))
            real = np.arange(S) < length
            ids = np.where(real, rng.integers(5, V, S), 0)
            ids[0], ids[length - 1] = 2, 3
            yield encode_example(
                features,
                {
                    "input_ids": ids,
                    "input_mask": real,
                    "segment_ids": np.zeros(S),
                    "word_starts": real & (ids > 4),
                    "next_sentence_labels": [0],
                    "schema_version": [records.SCHEMA_VERSION],
                },
            )

    write_tfrecords(str(tmp_path / "train"), rows())
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(V - 5))]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    found = []
    for packed in (False, True):
        run = resolved(tmp_path / "train", packed, tokenizer={"vocab_file": str(tmp_path / "vocab.txt")})
        found.append(collections.Counter(instances_of(run.held_out.source, run.held_out.source.batches_per_epoch)))
    assert found[0] == found[1] and len(found[0]) == 60


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {
                "options": {"pack": True, "objective": "next_token", "sentence_loss": False},
                "model": {"attention": "left_to_right"},
            },
            "config.options.pack: expected objective masked_lm",
        ),
        ({"options": {"pack": True}, "model": {"bilstm_layers": 1}}, "model.bilstm_layers 0"),
        ({"options": {"pack": True, "max_instances_per_row": 0}}, "max_instances_per_row: expected at least 1, got 0"),
    ],
)
def test_what_cannot_be_packed_is_refused(path, sections, message):
    with pytest.raises(ValueError, match=message):
        resolve(make_config(**sections), path)


def test_a_broken_record_is_named(tmp_path):
    path = write_records(tmp_path / "train", 40, shortest=4, input_ids=np.full(S, V))
    source = resolved(path, True, training={"batch_size": 4}).train
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        for _ in source.dataset().take(source.batches_per_epoch + 3):
            pass
    assert source.explain(str(refused.value)).startswith(f"{path}: record 39: token id beyond")


@pytest.mark.slow
def test_micro_batches_of_packed_rows_learn_as_the_whole_batch_does(path):
    found = {}
    for parts in (1, 4):
        run = resolved(path, True, training={"accumulation_steps": parts})
        found[parts] = weights_after_two_steps(run)
    for name, weight in found[1].items():
        np.testing.assert_allclose(found[4][name], weight, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_packed_rows_are_learned_from(path, tmp_path, precision):
    config = make_config(
        options={"pack": True},
        optimizer={"learning_rate": 1e-2},
        training={"steps": 100, "save_every": 50, "precision": precision},
    )
    with own_precision():
        trained = whole_run.train(load_task(config), data_files(path, path), str(tmp_path / "run"), Placement())
    assert trained.metrics["mlm_accuracy"] > 0.7
