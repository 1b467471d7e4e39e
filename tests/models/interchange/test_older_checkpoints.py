"""Folders of 2019 and 2020, of research forks and of tokenizers alone, in the layouts in which they are published."""

import collections
import json
import pickle
import shutil
import struct

import numpy as np
import pytest
from absl import flags
from commands import imported_tool
from made_checkpoints import WORDS, stored_small
from safetensors.numpy import load_file, save_file

import official_bert
from official_bert.models.interchange import formats
from official_bert.models.interchange.weight_files import torch_pickle
from official_bert.tasks.loading import restore_for_inference


@pytest.fixture
def folder(tmp_path):
    """Returns a function that writes a folder of a head, with a changed config.json (None: without a key) and changed
    tensors.
    """

    def write(head, changes=None, change_tensors=lambda tensors: tensors):
        path = tmp_path / f"published_{head or 'encoder'}"
        formats.write(stored_small(head), "hugging_face", str(path))
        values = json.loads((path / "config.json").read_text()) | (changes or {})
        (path / "config.json").write_text(
            json.dumps({key: value for key, value in values.items() if value is not None})
        )
        tensors = load_file(path / "model.safetensors")
        save_file(change_tensors(tensors), path / "model.safetensors")
        return path

    return write


class Named:
    """Pickles as a name in another module, whose function is called with the arguments if there are any."""

    def __init__(self, module, name, *arguments):
        self.module, self.name, self.arguments = module, name, arguments


class OlderPickler(pickle._Pickler):
    """Writes the names, calls and storages of torch.save before 1.6 without torch."""

    def persistent_id(self, obj):
        return obj if isinstance(obj, tuple) and obj[:1] == ("storage",) else None

    def save_named(self, obj):
        if obj.arguments:
            self.save_reduce(Named(obj.module, obj.name), obj.arguments)
        else:
            self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())

    dispatch = {**pickle._Pickler.dispatch, Named: save_named}


Named.__call__ = lambda self: None  # pickle requires a callable


def write_older_bin(path, tensors, cut=0, version=1001):
    """Writes the format of PyTorch before 1.6: four pickles, the storages' keys, and each storage behind its length."""
    entries = collections.OrderedDict()
    for number, (name, value) in enumerate(tensors.items()):
        storage = ("storage", Named("torch", "FloatStorage"), str(number), "cpu", value.size, None)
        steps = tuple(step // value.itemsize for step in np.ascontiguousarray(value).strides)
        entries[name] = Named(
            "torch._utils", "_rebuild_tensor_v2", storage, 0, value.shape, steps, False, collections.OrderedDict()
        )
    with open(path, "wb") as file:
        for value in (
            torch_pickle.MAGIC,
            version,
            {"protocol_version": 1001, "little_endian": True},
            entries,
            [str(number) for number in range(len(tensors))],
        ):
            OlderPickler(file, 2).dump(value)
        for value in tensors.values():
            file.write(struct.pack("<q", value.size) + np.ascontiguousarray(value).tobytes())
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])


def assert_same(model, head):
    reference = stored_small(head)
    assert set(model.weights) == set(reference.weights) and model.head == head
    for name, weight in reference.weights.items():
        np.testing.assert_array_equal(model.weights[name].reshape(weight.shape), weight, err_msg=name)


@pytest.mark.parametrize("head", ["pretraining", "classifier", ""])
def test_a_config_of_2019_names_neither_type_nor_class(folder, head):
    assert_same(formats.read(str(folder(head, {"model_type": None, "architectures": None}))), head)


def test_bert_config_json_beside_an_older_pytorch_model_bin_is_read(folder):
    path = folder("pretraining")
    write_older_bin(path / "pytorch_model.bin", load_file(path / "model.safetensors"))
    (path / "model.safetensors").unlink()
    google = {"hidden_act": "gelu", "directionality": "bidi", "pooler_type": "first_token_transform"}
    values = json.loads((path / "config.json").read_text()) | google
    (path / "bert_config.json").write_text(
        json.dumps(
            {
                key: value
                for key, value in values.items()
                if key not in ("architectures", "model_type", "layer_norm_eps")
            }
        )
    )
    for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json"):
        (path / name).unlink()
    for given in (path, path / "pytorch_model.bin"):
        model = formats.read(str(given))
        assert_same(model, "pretraining")
        assert list(model.vocab) == WORDS
        # as PyTorch computes these weights
        assert model.config.hidden_act == "gelu_erf" and "erf form" in model.notes[0]
    shutil.copy(path / "vocab.txt", path / "again.txt")
    assert official_bert.load_tokenizer(path).tokenize("a b") == ["a", "b"]


def test_a_tensorflow_checkpoint_beside_it_is_read_as_before(folder, tmp_path):
    path = folder("pretraining")
    formats.write(stored_small("pretraining"), "tf1", str(tmp_path / "google"))
    shutil.copy(path / "model.safetensors", tmp_path / "google/model.safetensors")
    assert formats.find_format(str(tmp_path / "google"))[0] == "tf1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cut": 5}, "refused: a storage 1 of another length than 4,800 bytes"),
        ({"version": 900}, "refused: another version than 1001"),
        ({"cut": 900}, "refused: .* file's bytes, one of them of 1,200 numbers"),
    ],
)
def test_damaged_older_files_are_named(tmp_path, change, message):
    path = tmp_path / "pytorch_model.bin"
    write_older_bin(path, {"a": np.ones((3, 4), "float32"), "b": np.arange(6, dtype="float32").reshape(2, 3)})
    np.testing.assert_array_equal(torch_pickle.load_tensors(str(path))["b"], [[0, 1, 2], [3, 4, 5]])
    write_older_bin(path, {"a": np.ones((30, 4), "float32"), "b": np.ones((30, 40), "float32")}, **change)
    with pytest.raises(ValueError, match=message):
        torch_pickle.load_tensors(str(path))
    path.write_bytes(b"\x80\x91" + b"x" * 40)
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: refused: .*expected a file of torch.save"):
        torch_pickle.load_tensors(str(path))


def test_an_older_file_that_would_run_code_is_refused(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    with open(path, "wb") as file:
        OlderPickler(file, 2).dump(torch_pickle.MAGIC)
        OlderPickler(file, 2).dump(Named("os", "system", f"touch {tmp_path}/run"))
    with pytest.raises(ValueError, match=r"refused: this pickle file would run (os|posix).system"):
        torch_pickle.load_tensors(str(path))
    assert not (tmp_path / "run").exists()


def test_a_class_of_ones_own_is_read_by_the_names_of_its_weights(folder, caplog):
    path = folder(
        "classifier",
        {"architectures": ["BertWithCRF"]},
        lambda tensors: tensors | {"crf.transitions": np.ones((3, 3), "float32")},
    )
    model = formats.read(str(path))
    assert (model.head, model.unknown) == ("classifier", ["crf.transitions"])
    assert model.warnings == [
        "BertWithCRF is not a class of Hugging Face; it is read by the names of its weights (head: classifier), "
        "without its other computations"
    ]
    restore_for_inference(str(path))
    assert "not used: crf.transitions" in caplog.text and "BertWithCRF is not a class of Hugging Face" in caplog.text


@pytest.mark.parametrize("prefix", ["model.bert.", "encoder.", "module.bert.", "backbone."])
def test_the_encoder_may_have_any_name_in_a_class_of_ones_own(folder, prefix):
    path = folder(
        "",
        {"architectures": ["TwoTasks"]},
        lambda tensors: (
            {prefix + name: tensor for name, tensor in tensors.items()}
            | {f"{prefix.removesuffix('bert.')}slots.weight": np.ones((3, 8), "float32")}
            if prefix != "encoder."
            else {prefix + name: tensor for name, tensor in tensors.items()}
            | {"slots.weight": np.ones((3, 8), "float32")}
        ),
    )
    model = formats.read(str(path))
    assert_same(model, "")
    assert len(model.unknown) == 1 and model.unknown[0].endswith("slots.weight")


@pytest.mark.parametrize(
    ("added", "unused"),
    [
        ({"qa_outputs.weight": (2, 8), "qa_outputs.bias": (2,)}, 4),  # two heads: nobody says which answers
        ({"classifier.weight": (3, 16)}, 2),
        ({"classifier.bias": None}, 1),
    ],
)
def test_heads_that_are_not_berts_are_left_unused_and_the_encoder_is_read(folder, added, unused):
    def change(tensors):
        changed = tensors | {name: np.ones(shape, "float32") for name, shape in added.items() if shape}
        return {name: tensor for name, tensor in changed.items() if added.get(name, ()) is not None}

    model = formats.read(str(folder("classifier", {"architectures": ["Mine"]}, change)))
    assert model.head == "" and len(model.unknown) == unused
    formats.make_model(formats.encoder_of(model))


def test_two_encoders_are_refused(folder):
    path = folder(
        "",
        {"architectures": ["TwoTowers"]},
        lambda tensors: {f"{side}.{name}": tensor for side in ("left", "right") for name, tensor in tensors.items()},
    )
    with pytest.raises(ValueError, match=r"expected one encoder, got 2, 'left\.' and 'right\.'"):
        formats.read(str(path))


def test_what_a_class_of_ones_own_has_more_is_dropped_by_the_converter(folder, tmp_path, capsys):
    path = folder(
        "pretraining",
        {"architectures": ["Mine"]},
        lambda tensors: tensors | {f"cls.extra.{part}": np.ones(3, "float32") for part in ("weight", "bias")},
    )
    with imported_tool("convert_checkpoint") as tool:

        def convert(*more):
            flags.FLAGS(
                ["convert_checkpoint.py", "--to=ours", f"--input={path}", f"--output={tmp_path / 'out'}", *more]
            )
            tool.main([])

        with pytest.raises(ValueError, match=r"left over, .*: cls\.extra\.\w+, cls\.extra\.\w+"):
            convert()
        convert("--drop=cls.extra.*")
    assert "Mine is not a class of Hugging Face" in capsys.readouterr().out
    assert_same(formats.read(str(tmp_path / "out")), "pretraining")


@pytest.mark.parametrize("fast", [False, True])
def test_a_folder_of_a_saved_tokenizer_alone_gives_the_tokenizer(tmp_path, fast):
    path = tmp_path / "tokenizer"
    formats.write(stored_small(""), "hugging_face", str(path))
    for name in ("config.json", "model.safetensors"):
        (path / name).unlink()
    if fast:
        (path / "vocab.txt").unlink()
        (path / "tokenizer.json").write_text(
            json.dumps(
                {
                    "normalizer": {"type": "BertNormalizer", "lowercase": False},
                    "model": {"type": "WordPiece", "vocab": {word: index for index, word in enumerate(WORDS)}},
                }
            )
        )
    tokenizer = official_bert.load_tokenizer(path)
    assert tokenizer.tokenize("a A b") == ["a", "[UNK]", "b"]  # tokenizer_config.json says cased
    with pytest.raises(ValueError, match="no checkpoint found there"):
        official_bert.load_encoder(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no checkpoint found there"):
        official_bert.load_tokenizer(tmp_path / "empty")


def test_added_tokens_that_the_tokenizer_passes_over_are_told(tmp_path, caplog):
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]), encoding="utf-8"
    )
    (tmp_path / "added_tokens.json").write_text('{"<user>": 6}', encoding="utf-8")
    assert official_bert.load_tokenizer(tmp_path).tokenize("a") == ["a"]
    assert f"{tmp_path}: its added tokens (<user>) are split into pieces here, like other text" in caplog.text
