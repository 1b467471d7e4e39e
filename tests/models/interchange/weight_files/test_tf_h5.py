"""`tf_model.h5`: outputs of transformers 4.46 on TensorFlow 2.20, files in pieces, and hostile files."""

import json
import pathlib
import resource
import shutil
import time

import h5py
import numpy as np
import pytest

import official_bert
from official_bert.models.interchange import formats
from official_bert.models.interchange.weight_files import tf_h5
from official_bert.models.interchange.weight_files.tf_h5 import load_tensors, torch_name

FIXTURES = pathlib.Path(__file__).parents[3] / "golden" / "tf_h5"
OUTPUTS = {"prediction_logits": "mlm_logits", "seq_relationship_logits": "nsp_logits", "logits": "mlm_logits"}


def outputs_and_wanted(folder, fixture):
    values = np.load(FIXTURES / fixture / "expected.npz")
    rows = {key: values[f"in.{key}"].astype("int32") for key in ("input_ids", "attention_mask", "token_type_ids")}
    batch, length = rows["input_ids"].shape
    inputs = {
        "input_ids": rows["input_ids"],
        "input_mask": rows["attention_mask"],
        "segment_ids": rows["token_type_ids"],
        "masked_lm_positions": np.tile(np.arange(length, dtype="int32"), (batch, 1)),
    }
    outputs = official_bert.load_model(str(folder))(inputs)
    real = rows["attention_mask"] == 1
    for name in values.files:
        if name.startswith("out."):
            got, wanted = np.asarray(outputs[OUTPUTS[name[4:]]]), values[name]
            yield (got[real], wanted[real]) if wanted.ndim == 3 else (got, wanted)


def assert_outputs(folder, fixture):
    pairs = list(outputs_and_wanted(folder, fixture))
    assert pairs
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("fixture", ["BertForPreTraining", "AlbertForMaskedLM"])
def test_outputs_are_those_of_transformers_on_tensorflow(fixture):
    assert_outputs(FIXTURES / fixture, fixture)
    assert_outputs(FIXTURES / fixture / "tf_model.h5", fixture)


def test_pieces_with_an_index_are_read_as_one_file(tmp_path):
    # As transformers' tf_shard_checkpoint and save_pretrained lay them out: no scope of the file's own.
    fixture, tensors = "BertForPreTraining", {}
    shutil.copy(FIXTURES / fixture / "config.json", tmp_path)
    with h5py.File(FIXTURES / fixture / "tf_model.h5") as file:
        file.visititems(
            lambda path, item: (
                tensors.update({path.split("/", 2)[2]: item[()]}) if isinstance(item, h5py.Dataset) else None
            )
        )
    weight_map = {}
    for number, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), 1):
        piece = f"tf_model-0000{number}-of-00002.h5"
        with h5py.File(tmp_path / piece, "w") as file:
            for name in names:
                file[name] = tensors[name]
            file.attrs["layer_names"] = [name.encode() for name in names]
        weight_map |= dict.fromkeys(names, piece)
    (tmp_path / "tf_model.h5.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert_outputs(tmp_path, fixture)


def test_names_are_those_of_pytorch():
    # by hand, from transformers' convert_tf_weight_name_to_pt_weight_name
    for theirs, name in {
        "bert/encoder/layer_._11/attention/self/query/kernel:0": "bert.encoder.layer.11.attention.self.query.weight",
        "mlm___cls/predictions/transform/LayerNorm/gamma:0": "cls.predictions.transform.LayerNorm.weight",
        "bert/embeddings/LayerNorm/beta:0": "bert.embeddings.LayerNorm.bias",
        "mpnet/encoder/relative_attention_bias/embeddings:0": "mpnet.encoder.relative_attention_bias.weight",
        "deberta/encoder/rel_embeddings.weight:0": "deberta.encoder.rel_embeddings.weight",
        "albert/encoder/albert_layer_groups_._0/albert_layers_._1/ffn/bias:0": (
            "albert.encoder.albert_layer_groups.0.albert_layers.1.ffn.bias"
        ),
    }.items():
        assert torch_name(theirs.split("/")) == name


def test_alberts_words_take_the_bias_that_its_code_for_tensorflow_adds(tmp_path):
    shutil.copytree(FIXTURES / "AlbertForMaskedLM", tmp_path / "albert")
    path = tmp_path / "albert" / "tf_model.h5"
    with h5py.File(path, "r+") as file:
        scope = file["predictions/tf_albert_for_masked_lm/predictions"]
        scope["bias:0"][:] = scope["bias:0"][:] + 1
        wanted = scope["decoder/bias:0"][:]
    stored = formats.read(str(tmp_path / "albert"))
    np.testing.assert_array_equal(stored.weights["masked_lm/output_bias"], wanted)


WEIGHT = np.arange(12, dtype="float32").reshape(3, 4)


def packed(file):
    file.create_dataset("bert/m/a/kernel:0", data=np.zeros((64, 64)), compression="gzip")


def elsewhere(file):
    file["bert"] = h5py.ExternalLink("other.h5", "/bert")


def soft(file):
    file["bert/m/a/kernel:0"] = WEIGHT
    file["bert/m/b"] = h5py.SoftLink("/bert/m/a")


def virtual(file):
    layout = h5py.VirtualLayout((3, 4), "float32")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3, 4))
    file.create_virtual_dataset("bert/m/a/kernel:0", layout)


def outside(file):
    file.create_dataset("bert/m/a/kernel:0", (3, 4), "float32", external=[("/etc/hostname", 0, 48)])


def huge(file):
    file.create_dataset("bert/m/a/kernel:0", (1 << 20, 1 << 20), "float32")  # nothing is written: no storage


def cycle(file):
    file["bert/m/a/kernel:0"] = WEIGHT
    file["bert/m/b"] = file["bert"]


def many_names_of_one(file):
    file["bert/m/a/kernel:0"] = np.zeros(1 << 20, "float32")
    for number in range(64):
        file[f"bert/m/a{number}/kernel:0"] = file["bert/m/a/kernel:0"]


def too_many(file):
    file["bert/m/a/kernel:0"] = WEIGHT
    for number in range(200):
        file[f"bert/m/a{number}/kernel:0"] = file["bert/m/a/kernel:0"]


def texts(file):
    file["bert/m/a/kernel:0"] = ["a" * 9] * 3


def a_type(file):
    file["bert/m/a"] = np.dtype("float32")


def dimensions(file):
    file["bert/m/a/kernel:0"] = np.zeros((1,) * 9, "float32")


def two(file):
    file["bert/m/a/kernel:0"], file["cls/m/a/kernel:0"] = WEIGHT, WEIGHT + 1


@pytest.mark.parametrize(
    "hostile, said",
    [
        (packed, "packed or external ones"),
        (elsewhere, "a link to another place or file"),
        (soft, "a link to another place or file"),
        (virtual, "packed or external ones"),
        (outside, "packed or external ones"),
        (huge, "bytes, which the file does not hold"),
        (cycle, "names, or groups deeper than"),
        (many_names_of_one, "times the bytes of the file"),
        (too_many, "names, or groups deeper than"),
        (texts, "expected numbers"),
        (a_type, "neither a group nor a tensor"),
        (dimensions, "at most 8 dimensions"),
        (two, "several tensors are a.weight"),
    ],
)
def test_hostile_files_end_in_one_line_and_take_no_memory(hostile, said, tmp_path, monkeypatch):
    monkeypatch.setattr(tf_h5, "MOST_LINKS", 300)
    with h5py.File(path := tmp_path / "tf_model.h5", "w") as file:
        hostile(file)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(ValueError) as error:
        load_tensors(str(path))
    assert said in str(error.value) and str(error.value).startswith(f"{path}: refused: ")
    assert "\n" not in str(error.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB
    assert time.monotonic() - start < 20


def test_damaged_files_end_in_one_line(tmp_path):
    content = (FIXTURES / "BertForPreTraining" / "tf_model.h5").read_bytes()
    random, refused = np.random.default_rng(7), 0
    for number in range(40):
        damaged = bytearray(content[: len(content) // 2] if number == 0 else content)
        for place in random.integers(0, 4096, 12):
            damaged[place] ^= int(random.integers(1, 256))
        path = tmp_path / f"{number}.h5"
        path.write_bytes(damaged)
        try:
            load_tensors(str(path))
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 10
    (tmp_path / "text.h5").write_text("no HDF5")
    with pytest.raises(ValueError, match="text.h5: refused: "):
        load_tensors(str(tmp_path / "text.h5"))


def test_another_layout_of_names_is_no_model(tmp_path):
    shutil.copy(FIXTURES / "BertForPreTraining" / "config.json", tmp_path)
    with h5py.File(tmp_path / "tf_model.h5", "w") as file:
        file["a:0"] = WEIGHT
    with pytest.raises(ValueError, match="holds no weight of a BERT model"):
        formats.read(str(tmp_path))
