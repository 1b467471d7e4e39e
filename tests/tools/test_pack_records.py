"""Packing of files: the rows are those of `options.pack`, the instances those of the records; what cannot be packed is
refused.
"""

import gzip
import pathlib

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from commands import imported_tool
from made_pretraining import make_config, resolve, write_records
from oracles.records import encode_example, write_tfrecords

from official_bert.data.pretraining.packing import unpack
from official_bert.data.record_files import records
from official_bert.long_work import provenance

ROOT = pathlib.Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
OPTIONS = {"pack": True, "max_instances_per_row": 3}


def caller(name, own_main):
    """A fixture that runs a tool in this process and returns what it prints."""

    @pytest.fixture
    def call(capsys):
        def run(*arguments):
            with imported_tool(name) as tool, flagsaver.flagsaver():
                flags.FLAGS([name, *map(str, arguments)])
                getattr(tool, own_main)(*[[]] * (own_main == "main"))
            return capsys.readouterr().out

        return run

    return call


pack, inspect = caller("pack_records", "main"), caller("inspect_records", "main")


def rows_of(path):
    return list(records.read_instances([str(path)]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "train.gz"])
def test_packed_files_have_the_rows_of_records_that_are_packed_while_they_are_read(pack, tmp_path, name):
    path = write_records(tmp_path / "train", 90, shortest=4)
    provenance.write_origin(path, {"sentence_task": "nsp"})
    if name.endswith(".gz"):
        path = str(tmp_path / name)
        pathlib.Path(path).write_bytes(gzip.compress((tmp_path / "train").read_bytes()))
    printed = pack(f"--input_file={path}", f"--output_dir={tmp_path / 'packed'}", "--max_instances_per_row=3")
    target = tmp_path / "packed" / name
    assert records.is_gzip(str(target)) == name.endswith(".gz")
    found, while_read = [], []
    for source, into in ((target, found), (path, while_read)):
        held_out = resolve(make_config(options=OPTIONS, training={"eval_batch_size": 8}), path, source).held_out.source
        for batch in held_out.dataset():
            real = batch["example_weights"].numpy() > 0
            into.append({key: value.numpy()[real] for key, value in batch.items()})
    for one, other in zip(found, while_read, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            np.testing.assert_array_equal(one[key], value, err_msg=key)
    rows = rows_of(target)
    tokens = sum(int(row["input_mask"].sum()) for row in rows_of(path))
    assert f"{target}: 90 instances in {len(rows)} rows, {1 - tokens / (16 * len(rows)):.1%} padding" in printed
    if name == "train":
        assert provenance.read_origin(str(target))["sentence_task"] == "nsp"


@pytest.fixture(scope="module")
def golden_records(tmp_path_factory):
    arrays = dict(np.load(GOLDEN / "generator_base.npz"))
    path = tmp_path_factory.mktemp("golden") / "train"
    write_tfrecords(
        str(path),
        [
            encode_example(records.pretraining_features(128, 20), {key: value[row] for key, value in arrays.items()})
            for row in range(len(arrays["input_ids"]))
        ],
    )
    return path, arrays


def test_the_instances_of_2018_are_there_and_inspected(pack, inspect, golden_records, tmp_path):
    path, arrays = golden_records
    pack(f"--input_file={path}", f"--output_dir={tmp_path}")
    rows = rows_of(tmp_path / "train")
    instances, _ = unpack({key: np.stack([row[key] for row in rows]) for key in rows[0]})
    order, wanted = (
        np.lexsort([*values["input_ids"].T, *values["masked_lm_positions"][:, :5].T]) for values in (instances, arrays)
    )
    for key, value in arrays.items():
        np.testing.assert_array_equal(instances[key][order][:, : value.shape[1]], value[wanted], err_msg=key)
    vocab = f"--vocab_file={GOLDEN / 'vocab_uncased.txt'}"
    packed, plain = (inspect(f"--input_file={file}", vocab).splitlines() for file in (tmp_path / "train", path))
    assert packed[1].startswith(
        f"271 records in {len(rows)} rows of 128 tokens; {arrays['input_mask'].sum() / 271:.1f} used"
    )
    # examples are printed in the order of the rows
    statistics = [line for line in plain[2:] if not line.startswith("  label")]
    assert [line for line in packed[2:] if not line.startswith("  label")] == statistics
    assert sum(line.startswith("  label") for line in packed) == 3


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("instance_ids", 0, 2, "its instances are not numbered"),
        ("instance_weights", 0, 0.5, "an instance weight is neither 0 nor 1"),
        ("cls_positions", 0, 3, "a place of [CLS] is not where its instance begins"),
        ("position_ids", 3, 9, "a position does not count from the beginning"),
        ("input_ids", 0, 77, "it does not begin with [CLS]"),
    ],
)
def test_damaged_rows_are_named(pack, inspect, golden_records, tmp_path, name, place, value, message):
    pack(f"--input_file={golden_records[0]}", f"--output_dir={tmp_path}")
    rows = rows_of(tmp_path / "train")
    rows[4][name][place] = value
    features = records.file_features(str(tmp_path / "train"))
    write_tfrecords(str(tmp_path / "damaged"), [encode_example(features, row) for row in rows])
    with pytest.raises(ValueError) as refused:
        inspect(f"--input_file={tmp_path / 'damaged'}", f"--vocab_file={GOLDEN / 'vocab_uncased.txt'}")
    assert f"damaged: record 4: {message}" in str(refused.value)


def test_packed_records_never_appear_without_their_settings(pack, tmp_path, monkeypatch):
    path = write_records(tmp_path / "train", 20, shortest=4)
    provenance.write_origin(path, {"sentence_task": "sop"})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(provenance, "write_origin", killed)
    with pytest.raises(KeyboardInterrupt):
        pack(f"--input_file={path}", f"--output_dir={tmp_path / 'packed'}")
    assert list((tmp_path / "packed").iterdir()) == []


def test_what_cannot_be_packed_is_refused_and_leaves_nothing(pack, tmp_path):
    path = write_records(tmp_path / "train", 20, shortest=4)
    pack(f"--input_file={path}", f"--output_dir={tmp_path / 'packed'}")
    unmasked = records.unmasked_features(16)
    write_tfrecords(
        str(tmp_path / "unmasked"),
        [encode_example(unmasked, {feature.name: np.ones(feature.length) for feature in unmasked})],
    )
    (tmp_path / "empty").write_bytes(b"")
    before = sorted(tmp_path.rglob("*"))
    for arguments, message in [
        ([tmp_path / "empty", tmp_path / "new"], "expected records, got 1 empty file$"),
        ([path, tmp_path], "train would overwrite another file"),
        ([path, tmp_path / "packed"], "train exists; give a new folder"),
        ([tmp_path / "packed" / "train", tmp_path / "new"], "its records are packed already"),
        ([tmp_path / "unmasked", tmp_path / "new"], "have no masks yet; set config.options.pack"),
        ([f"{path},{tmp_path / 'unmasked'}", tmp_path / "new"], "have no masks yet"),
    ]:
        with pytest.raises(ValueError, match=message):
            pack(f"--input_file={arguments[0]}", f"--output_dir={arguments[1]}")
    assert sorted(tmp_path.rglob("*")) == before


def test_packed_files_want_the_options_with_which_they_were_packed(pack, tmp_path):
    path = write_records(tmp_path / "train", 40, shortest=4)
    pack(f"--input_file={path}", f"--output_dir={tmp_path / 'packed'}", "--max_instances_per_row=3")
    for options, message in [
        ({}, "config.options.pack is False, but its records hold packed rows"),
        ({"pack": True}, "config.options.max_instances_per_row is 8, but its records hold 3"),
        (OPTIONS | {"max_predictions_per_seq": 4}, "config.options.max_predictions_per_seq is 4, but .* hold 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            resolve(make_config(options=options), tmp_path / "packed" / "train")
    with pytest.raises(ValueError, match="expected records of one kind, got masked and packed"):
        resolve(make_config(options=OPTIONS), f"{path},{tmp_path / 'packed' / 'train'}")
