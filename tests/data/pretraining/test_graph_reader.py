"""The graph reads what `RecordSource` reads in Python; servers without our code run it."""

import contextlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from local_ports import free_ports
from made_generation import facts_of
from oracles.records import encode_example, write_tfrecords

from official_bert.data.batches import record_order
from official_bert.data.batches.sources import Progress, RecordSource, refuse_rows
from official_bert.data.pretraining import graph_reader
from official_bert.data.pretraining.dynamic_masking import DynamicMasking
from official_bert.data.pretraining.graph_reader import GraphReader
from official_bert.data.pretraining.masking import MaskingConfig
from official_bert.data.record_files import records
from official_bert.text.vocab import load_vocab

FEATURES = (records.Feature("number", 1),)
SERVER = """
import sys, tensorflow as tf
cluster = tf.train.ClusterSpec({"worker": sys.argv[2:]})
tf.distribute.Server(cluster, job_name="worker", task_index=int(sys.argv[1])).join()
"""


def parse(serialized, indices, **progress):
    return {"number": records.parse_examples(serialized, FEATURES)["number"][:, 0], "index": indices} | progress


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """Three files of 41, 17 and 30 records, in blocks of 4 and windows of 3 blocks; runs of neighbours have 6 records
    at most.
    """
    monkeypatch.setattr(record_order, "BLOCK", 4)
    monkeypatch.setattr(record_order, "WINDOW", 3)
    monkeypatch.setattr(graph_reader, "LONGEST_RUN", 6)
    found, first = [], 0
    for part, count in enumerate((41, 17, 30)):
        found.append(str(tmp_path / f"part-{part}"))
        write_tfrecords(found[-1], [encode_example(FEATURES, {"number": [first + row]}) for row in range(count)])
        first += count
    return found


def rows(dataset):
    return [{name: value.numpy().tolist() for name, value in batch.items()} for batch in dataset]


@pytest.mark.parametrize(
    ("start", "shards"), [(0, 1), (5, 2), pytest.param(13, 4, marks=pytest.mark.slow), (14, 2), (27, 1)]
)
def test_batches_are_those_of_the_python_reader_in_all_epochs_on_all_hosts(paths, tmp_path, start, shards):
    source, stop = RecordSource(paths, 8, parse, seed=3), 33  # three epochs of 11 batches
    source.progress = Progress(total=64, before=31)
    reader = GraphReader(source, str(tmp_path / "orders"))
    reader.write_orders(start, stop)
    assert len(os.listdir(tmp_path / "orders")) == 3 - start // 11
    for shard in range(shards):
        found = rows(reader.dataset(start, stop, shards, shard))
        assert found == rows(source.dataset(start, shards, shard).take(stop - start))
        assert [{*batch["progress"]} for batch in found] == [{(n + 31) / 64} for n in range(start, stop)]


@pytest.mark.parametrize("shards", [1, 2])
def test_an_evaluation_is_filled_up_with_rows_of_weight_0(paths, tmp_path, shards):
    source = RecordSource(paths, 12, parse, shuffle=False)
    reader = GraphReader(source, str(tmp_path))
    reader.write_orders(0, source.batches_per_epoch)
    for shard in range(shards):
        found = rows(reader.dataset(0, source.batches_per_epoch, shards, shard))
        assert found == rows(source.dataset(0, shards, shard))
    assert found[-1]["example_weights"][-1] == 0.0 and len(found) == 8


def test_dynamic_masks_are_the_same(tmp_path, root):
    """A mask is a function of the seed, the epoch and the record's number."""
    facts = facts_of(load_vocab(str(root / "tests/golden/vocab_uncased.txt")))
    features, rng = records.unmasked_features(16), np.random.default_rng(0)
    values = {
        "input_mask": [1] * 16,
        "segment_ids": [0] * 16,
        "word_starts": [0] + [1] * 14 + [0],
        "next_sentence_labels": [0],
        "schema_version": [records.SCHEMA_VERSION],
    }
    write_tfrecords(
        str(tmp_path / "records"),
        [
            encode_example(features, values | {"input_ids": [facts.cls_id, *rng.integers(200, 300, 14), facts.sep_id]})
            for _ in range(20)
        ],
    )
    masking = DynamicMasking(MaskingConfig(), facts, 16, 3, seed=5)
    source = RecordSource(
        [str(tmp_path / "records")],
        4,
        lambda *rows: masking(records.parse_examples(rows[0], features), rows[1]),
        seed=5,
    )
    reader = GraphReader(source, str(tmp_path))
    reader.write_orders(0, 10)
    found = rows(reader.dataset(0, 10))
    assert found == rows(source.dataset().take(10))
    by_ids = [
        sorted(map(tuple, np.concatenate([batch["masked_lm_positions"] for batch in epoch])))
        for epoch in (found[:5], found[5:])
    ]
    assert by_ids[0] != by_ids[1]  # another epoch, other masks


def test_orders_belong_to_files_and_seed(paths, tmp_path):
    folder = tmp_path / "orders"
    GraphReader(RecordSource(paths, 8, parse, seed=3), str(folder)).write_orders(0, 11)
    # another batch size, the same order
    GraphReader(RecordSource(paths, 4, parse, seed=3), str(folder)).write_orders(0, 22)
    assert len(os.listdir(folder)) == 1
    GraphReader(RecordSource(paths, 8, parse, seed=4), str(folder)).write_orders(0, 11)
    os.utime(paths[0], (1, 1))
    GraphReader(RecordSource(paths, 8, parse, seed=3), str(folder)).write_orders(0, 11)
    assert len(os.listdir(folder)) == 3


def test_a_refused_row_is_named_by_file_and_record(paths, tmp_path):
    def refusing(serialized, indices):
        batch = parse(serialized, indices)
        return refuse_rows(batch, {"too large a number": batch["number"] == 50})  # record 9 of the second file

    reader = GraphReader(RecordSource(paths, 8, refusing, seed=3), str(tmp_path))
    reader.write_orders(0, 11)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"part-1: record 9: too large a number"):
        rows(reader.dataset(0, 11))


def test_a_file_that_a_host_does_not_see_is_found(paths, tmp_path):
    reader = GraphReader(RecordSource(paths, 8, parse, seed=3), str(tmp_path / "orders"))
    here = tf.config.list_logical_devices("CPU")[0].name
    assert reader.find_unread(here).startswith(str(tmp_path / "orders"))
    reader.write_orders(0, 11)
    assert reader.find_unread(here) == ""
    os.unlink(paths[2])
    assert reader.find_unread(here) == paths[2]


def test_gzip_is_refused_with_its_name(tmp_path):
    write_tfrecords(str(tmp_path / "a.gz"), [encode_example(FEATURES, {"number": [1]})], compress=True)
    with pytest.raises(
        ValueError, match=r"a\.gz: expected a plain file, got gzip: several hosts read records from their places"
    ):
        GraphReader(RecordSource([str(tmp_path / "a.gz")], 1, parse), str(tmp_path))


@contextlib.contextmanager
def servers(count, folder):
    """Processes that have TensorFlow and no code of ours."""
    hosts = [f"127.0.0.1:{port}" for port in free_ports(count)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "CUDA_VISIBLE_DEVICES": ""
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-I", "-c", SERVER, str(task), *hosts],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for task in range(count)
    ]
    try:
        yield hosts
    finally:
        for process in running:
            process.kill()
            process.wait()


COORDINATOR = """
import json, sys
import tensorflow as tf
hosts, paths, folder = json.loads(sys.argv[1])
tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({"worker": hosts}), job_name="coordinator")
from official_bert.data.batches import record_order
from official_bert.data.record_files import records
from official_bert.data.pretraining.graph_reader import GraphReader
from official_bert.data.batches.sources import RecordSource, refuse_rows
record_order.BLOCK, record_order.WINDOW = 4, 3
def parse(serialized, indices):
    parsed = records.parse_examples(serialized, (records.Feature("number", 1),))
    return {"number": parsed["number"][:, 0], "index": indices}
source = RecordSource(paths, 8, parse, seed=3)
reader = GraphReader(source, folder)
reader.write_orders(4, 22)
for task in range(len(hosts)):
    with tf.device(f"/job:worker/task:{task}/device:CPU:0"):
        batches = zip(reader.dataset(4, 22, len(hosts), task), source.dataset(4, len(hosts), task), strict=False)
        for batch, wanted in batches:
            place = tf.DeviceSpec.from_string(batch["number"].device)
            equal = all((batch[name].numpy() == value.numpy()).all() for name, value in wanted.items())
            print(json.dumps([place.job, place.task, equal]))
"""


@pytest.mark.slow
def test_servers_without_our_code_read_their_rows(paths, tmp_path, root):
    """The part of several hosts that needs no TPU: the input graph on other machines' processes."""
    with servers(2, tmp_path) as hosts:
        done = subprocess.run(
            [sys.executable, "-c", COORDINATOR, json.dumps([hosts, paths, str(tmp_path / "orders")])],
            cwd=root,
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    assert found == [("worker", 0, True)] * 18 + [("worker", 1, True)] * 18
