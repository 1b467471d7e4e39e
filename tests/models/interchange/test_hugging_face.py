"""Hugging Face's folders: files of several versions, refusals. `make test-slow` compares with the library itself."""

import collections
import json
import os
import pickle
import re
import shutil
import subprocess
import zipfile

import numpy as np
import pytest
from made_checkpoints import SMALL, WORDS, stored_small
from needed_tools import TORCH, needs_torch
from safetensors.numpy import load_file, save_file

from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import hugging_face
from official_bert.models.interchange.weight_files import torch_pickle


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hugging_face") / "pretraining"
    formats.write(stored_small("pretraining"), "hugging_face", str(path))
    return path


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def change_json(path, **changes):
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "absent"}))


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def assert_same(model, other):
    assert set(model.weights) == set(other.weights) and not model.unknown
    for name, weight in model.weights.items():
        np.testing.assert_array_equal(weight, other.weights[name], err_msg=name)


def test_matrices_are_transposed_and_config_names_the_tanh_form(folder):
    model, tensors = stored_small("pretraining"), load_file(folder / "model.safetensors")
    np.testing.assert_array_equal(
        tensors["bert.encoder.layer.1.intermediate.dense.weight"], model.weights["layer_1/intermediate/kernel"].T
    )
    kernel = model.weights["layer_0/attention/output/kernel"]  # [N,H,D]
    np.testing.assert_array_equal(
        tensors["bert.encoder.layer.0.attention.output.dense.weight"][3], kernel[:, :, 3].reshape(-1)
    )
    np.testing.assert_array_equal(tensors["cls.seq_relationship.weight"], model.weights["next_sentence/output_weights"])
    values = json.loads((folder / "config.json").read_text())
    assert values["hidden_act"] == "gelu_new" and values["architectures"] == ["BertForPreTraining"]
    assert json.loads((folder / "tokenizer_config.json").read_text())["do_lower_case"] is False
    assert (folder / "vocab.txt").read_text().split() == WORDS


def test_the_erf_form_comes_and_goes_as_gelu(tmp_path):
    formats.write(stored_small("", hidden_act="gelu_erf"), "hugging_face", str(tmp_path / "out"))
    assert json.loads((tmp_path / "out/config.json").read_text())["hidden_act"] == "gelu"
    again = formats.read(str(tmp_path / "out"))
    assert again.config.hidden_act == "gelu_erf" and "the erf form" in again.notes[0]


def test_old_names_buffers_and_second_names_are_understood(folder, copied):
    def age(tensors):
        tensors["bert.embeddings.position_ids"] = np.arange(12)[None]
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
        return {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in tensors.items()
        }

    change_tensors(copied, age)
    assert_same(formats.read(str(copied)), formats.read(str(folder)))


def test_tied_tensors_under_their_second_names_alone_are_taken(folder, copied):
    def renamed(tensors):
        tensors["cls.predictions.decoder.weight"] = tensors.pop("bert.embeddings.word_embeddings.weight")
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
        return tensors

    change_tensors(copied, renamed)
    assert_same(formats.read(str(copied)), formats.read(str(folder)))


def test_several_files_and_tokenizer_json_alone_are_read(folder, copied):
    tensors = load_file(copied / "model.safetensors")
    names, parts = sorted(tensors), {}
    for index, part in enumerate((names[:9], names[9:])):
        save_file({name: tensors[name] for name in part}, copied / f"model-{index}.safetensors")
        parts |= dict.fromkeys(part, f"model-{index}.safetensors")
    (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
    for name in ("model.safetensors", "vocab.txt", "tokenizer_config.json"):
        (copied / name).unlink()
    (copied / "tokenizer.json").write_text(
        json.dumps(
            {
                "normalizer": {"type": "BertNormalizer", "lowercase": True},
                "model": {
                    "type": "WordPiece",
                    "vocab": {word: index for index, word in reversed(list(enumerate(WORDS)))},
                },
            }
        )
    )
    again = formats.read(str(copied))
    assert_same(again, formats.read(str(folder)))
    assert list(again.vocab) == WORDS and again.do_lower_case is True


def test_half_precision_becomes_float32_and_is_said(copied):
    change_tensors(copied, lambda tensors: {name: value.astype(np.float16) for name, value in tensors.items()})
    again = formats.read(str(copied))
    assert {weight.dtype.name for weight in again.weights.values()} == {"float32"} and "float16 weights" in again.notes[
        0
    ]


class Global:
    """An object that is pickled as a name in another module."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def __call__(self):
        """Exists because pickle requires a callable."""


class Call:
    """An object that is pickled as a call of another module's function."""

    def __init__(self, module, name, arguments):
        self.function, self.arguments = Global(module, name), arguments

    def __reduce__(self):
        return self.function, self.arguments


class TorchPickler(pickle._Pickler):
    """Writes the format of torch.save without torch."""

    def persistent_id(self, obj):
        return obj if isinstance(obj, tuple) and obj[:1] == ("storage",) else None

    def save_name(self, obj):
        self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())

    dispatch = {**pickle._Pickler.dispatch, Global: save_name}


def write_bin(path, entries):
    """Writes a file in the format of torch.save; arrays become tensors, other values stay as they are."""
    arrays, found = {}, collections.OrderedDict()
    for name, value in entries.items():
        if isinstance(value, np.ndarray):
            key = str(len(arrays))
            arrays[key] = np.ascontiguousarray(value)
            storage = ("storage", Global("torch", "FloatStorage"), key, "cpu", value.size)
            steps = tuple(step // value.itemsize for step in arrays[key].strides)
            value = Call("torch._utils", "_rebuild_tensor_v2", (storage, 0, value.shape, steps, False, {}))
        found[name] = value
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("archive/data.pkl", "w") as file:
            TorchPickler(file, 2).dump(found)
        for key, array in arrays.items():
            archive.writestr(f"archive/data/{key}", array.tobytes())


def test_pytorch_model_bin_is_read_without_torch(folder, copied):
    write_bin(copied / "pytorch_model.bin", load_file(copied / "model.safetensors"))
    (copied / "model.safetensors").unlink()
    assert_same(formats.read(str(copied)), formats.read(str(folder)))


def test_a_pickle_file_that_would_run_code_is_refused_and_runs_nothing(copied, tmp_path):
    (copied / "model.safetensors").unlink()
    write_bin(copied / "pytorch_model.bin", {"weight": Call("os", "system", (f"touch {tmp_path}/run",))})
    with pytest.raises(ValueError, match=r"pytorch_model.bin: refused: this pickle file would run os.system"):
        formats.read(str(copied))
    write_bin(
        copied / "pytorch_model.bin",
        {
            "weight": Call(
                "torch._utils",
                "_rebuild_tensor_v2",
                (("storage", Global("torch", "FloatStorage"), "0", "cpu", 2), 1, (2, 3), (3, 1), False, {}),
            )
        },
    )
    with zipfile.ZipFile(copied / "pytorch_model.bin", "a") as archive:
        archive.writestr("archive/data/0", b"\0" * 8)
    with pytest.raises(ValueError, match="a tensor that reaches beyond its storage"):
        formats.read(str(copied))
    assert not (tmp_path / "run").exists()
    (copied / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": 1}))
    with pytest.raises(ValueError, match="expected a file of torch.save"):
        torch_pickle.load_tensors(str(copied / "pytorch_model.bin"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "t5", "architectures": ["T5EncoderModel"]},
            r"model_type bert, .*roberta.*, got model_type 't5' \(T5EncoderModel\)",
        ),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "got model_type 'gpt2'"),
        ({"architectures": ["BertLMHeadModel"]}, "expected one of BertModel, .* got BertLMHeadModel"),
        ({"is_decoder": True}, "is_decoder: True is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key' is not supported"),
        ({"hidden_act": "mish"}, "hidden_act: expected one of .*silu.* got 'mish'"),
        ({"hidden_size": "8"}, "config.json.hidden_size: expected int, got '8'"),
    ],
)
def test_other_architectures_are_named_and_refused(copied, changes, message):
    change_json(copied / "config.json", **changes)
    with pytest.raises(ValueError, match=message):
        formats.read(str(copied))


def test_missing_and_misshapen_tensors_are_named(copied):
    change_tensors(
        copied, lambda tensors: {name: value for name, value in tensors.items() if "layer.1.output" not in name}
    )
    with pytest.raises(ValueError, match="missing: bert.encoder.layer.1.output.dense.weight"):
        formats.make_model(formats.read(str(copied)))
    formats.write(stored_small("pretraining"), "hugging_face", str(copied / "again"))
    change_tensors(copied / "again", lambda tensors: tensors | {"bert.pooler.dense.bias": np.zeros(7, "float32")})
    with pytest.raises(ValueError, match=r"bert.pooler.dense.bias: expected \(8,\), got \(7,\)"):
        formats.make_model(formats.read(str(copied / "again")))
    change_tensors(copied / "again", lambda tensors: tensors | {"bert.adapter.weight": np.zeros(7, "float32")})
    with pytest.raises(ValueError, match="left over, with no place in a BERT model: bert.adapter.weight"):
        formats.make_model(formats.read(str(copied / "again")))


def test_output_words_of_their_own_are_refused(copied):
    change_tensors(copied, lambda tensors: tensors | {"cls.predictions.decoder.weight": np.ones((20, 8), "float32")})
    with pytest.raises(ValueError, match="decoder.weight is not bert.embeddings.word_embeddings.weight"):
        formats.read(str(copied))


def test_damaged_files_are_named(copied):
    path = copied / "model.safetensors"
    data = path.read_bytes()
    for damaged in (data[:4], b"\xff" * 8 + data[8:], data[:8] + b"!" + data[9:], data[:-50]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="model.safetensors: damaged safetensors file"):
            formats.read(str(copied))
    path.unlink()
    with pytest.raises(ValueError, match="expected model.safetensors or pytorch_model.bin or tf_model.h5, got config"):
        formats.read(str(copied))
    (copied / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json: not valid JSON"):
        formats.read(str(copied))


def run_torch(*arguments):
    script = os.path.join(os.path.dirname(__file__), "run_hugging_face.py")
    done = subprocess.run(
        [TORCH, script, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("head", ["pretraining", "", "classifier", "tagger", "span"])
def test_pytorch_computes_the_same_from_what_we_wrote(head, tmp_path):
    model = stored_small(head)
    formats.write(model, "hugging_face", str(tmp_path / "out"))
    rng, mask = np.random.default_rng(0), np.array([[1] * 9, [1] * 5 + [0] * 4])
    inputs = {
        "input_ids": rng.integers(0, 20, (2, 9)) * mask,
        "input_mask": mask,
        "segment_ids": rng.integers(0, 2, (2, 9)) * mask,
        "masked_lm_positions": np.tile(np.arange(9), (2, 1)),
    }
    np.savez(tmp_path / "inputs.npz", **inputs)
    run_torch("outputs", tmp_path / "out", tmp_path / "inputs.npz", tmp_path / "outputs.npz")
    ours, theirs = formats.outputs(formats.make_model(model), inputs), np.load(tmp_path / "outputs.npz")
    names = {
        "sequence_output": "sequence_output",
        "pooler_output": "pooled_output",
        "prediction_logits": "mlm_logits",
        "seq_relationship_logits": "nsp_logits",
        "logits": "logits",
        "start_logits": "start_logits",
        "end_logits": "end_logits",
    }
    compared = [name for name in names if name in theirs.files]
    assert len(compared) >= 2
    for name in compared:
        seen = mask.astype(bool) if theirs[name].shape[:2] == mask.shape else slice(None)
        np.testing.assert_allclose(ours[names[name]][seen], theirs[name][seen], atol=1e-5)


@pytest.mark.slow
@needs_torch
def test_both_of_pytorchs_own_files_are_read(tmp_path):
    run_torch("save", tmp_path / "saved")
    one, other = formats.read(str(tmp_path / "saved")), formats.read(str(tmp_path / "saved/bin"))
    assert_same(one, other)
    assert one.config.hidden_act == "gelu_erf" and formats.make_model(one).count_params() > 0
    assert hugging_face.read_tensors(str(tmp_path / "saved/bin"))["cls.predictions.bias"].shape == (SMALL.vocab_size,)


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    ("weight_map", "told"),
    [
        ({"w": "/etc/hostname"}, "weight_map: w: expected the name of a file inside the folder, got '/etc/hostname'"),
        ({"w": "../other/model.safetensors"}, "inside the folder, got '../other/model.safetensors'"),
        ({"w": "C:\\x"}, "inside the folder, got 'C:"),
        ({"w": "a\0"}, "inside the folder"),
        ({"w": ["a"]}, "inside the folder"),
        ({"w": "linked"}, "inside the folder, got 'linked', a link to /etc/hostname"),
        ({"w": "gone"}, "names 'gone', which does not exist"),
        ({"w": ""}, "names '', which does not exist"),
        (["a"], "weight_map: expected a file for each tensor, got "),
        ({}, "expected a file for"),
        ("model.safetensors", "expected a file for"),
        ("absent", "expected a file for each tensor, got None"),
    ],
)
def test_an_index_names_files_of_its_folder(copied, weights, weight_map, told):
    (copied / "model.safetensors").unlink()
    (copied / "linked").symlink_to("/etc/hostname")
    index = copied / f"{weights}.index.json"
    index.write_text(json.dumps({} if weight_map == "absent" else {"weight_map": weight_map}))
    with pytest.raises(ValueError, match="^" + re.escape(f"{index}: ")) as caught:
        hugging_face.read(str(copied))
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "C64", "Q4_0"])
def test_types_of_safetensors_without_a_meaning_here_are_refused_by_name(copied, kind):
    path, size = copied / "model.safetensors", {"F4": 2, "F6_E2M3": 3, "C64": 32}.get(kind, 4)
    header = json.dumps({"bert.pooler.dense.bias": {"dtype": kind, "shape": [4], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(
        ValueError, match=f"^{re.escape(str(path))}: .*{kind}: .*; expected one of F32, F16, BF16, F64$"
    ) as caught:
        hugging_face.read(str(copied))
    assert kind == "Q4_0" or "bert.pooler.dense.bias" in str(caught.value)
