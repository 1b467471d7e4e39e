"""Checkpoints by name, against a server on this machine that speaks the hub's interface; the real hub is out of reach
of tests.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import zipfile

import hub_server
import numpy as np
import pytest
from commands import ROOT
from made_checkpoints import stored_small

from official_bert.models.interchange import formats, hub

ASK = """
import sys
from official_bert.models.interchange import hub
for name in sys.argv[1:]:
    try:
        print("FOLDER", hub.local_folder(name))
    except ValueError as error:
        print("ERROR", error)
"""


@pytest.fixture
def repositories(tmp_path):
    """A folder of repositories, with a whole one that holds what must not be fetched, too."""
    folder = tmp_path / "repositories"
    (folder / "google-bert").mkdir(parents=True)
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "river"])}
    stored = formats.dataclasses.replace(stored_small("pretraining", vocab_size=6), vocab=words, do_lower_case=True)
    formats.write(stored, "hugging_face", str(folder / "google-bert/tiny"))
    for name, content in (
        ("pytorch_model.bin", b"a pickle"),
        ("modeling.py", b"raise SystemExit"),
        ("tf_model.h5", b"x"),
    ):
        (folder / "google-bert/tiny" / name).write_bytes(content)
    return folder


def ask(tmp_path, endpoint, *names, **variables):
    """Returns, for each name, the lines that a process of its own prints, beside its process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": endpoint, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        [sys.executable, "-c", ASK, *names],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def answers(process):
    """Returns the lines that a process of `ask` has printed."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.splitlines(), err


def test_a_repository_is_fetched_once_without_programs_and_then_needs_no_network(repositories, tmp_path):
    with hub_server.serving(repositories) as server:
        names = ("google-bert/tiny", "google-bert/none", "google-bert/tiny@v9", "google-bert/tiny@main")
        lines, _ = answers(ask(tmp_path, server.url, *names))
        assert lines[1].startswith("ERROR google-bert/none: no such file or folder, nor a repository of that name")
        assert lines[2] == "ERROR google-bert/tiny@v9: the repository has no revision 'v9'"
        folder = pathlib.Path(lines[0].removeprefix("FOLDER "))
        assert lines[3] == lines[0] and {path.name for path in folder.iterdir()} == {
            "config.json",
            "model.safetensors",
            "special_tokens_map.json",
            "tokenizer_config.json",
            "vocab.txt",
        }
        asked = [path for _, path, _ in server.seen]
        assert not [path for path in asked if path.endswith((".py", ".bin", ".h5"))]
        url = server.url
    for variables in ({"HF_HUB_OFFLINE": "1"}, {}):  # switched off, and nobody there
        offline, _ = answers(ask(tmp_path, url, "google-bert/tiny", "google-bert/other", **variables))
        assert offline[0] == lines[0]
        assert offline[1].startswith(
            "ERROR google-bert/other: no such file or folder, and the Hugging Face hub cannot be reached ("
        )
        assert offline[1].endswith("download it once while connected, or give the path of a folder with the files")
    read = formats.read(str(folder))
    assert read.head == "pretraining" and list(read.vocab)[-1] == "river"


@pytest.mark.slow
def test_readmes_command_fills_a_blank_with_a_model_of_that_name(repositories, tmp_path):
    command = re.search(
        r"^\.venv/bin/python (-m official_bert.run_predict --model=(google-bert/\S+) .*)$",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    (repositories / "google-bert/tiny").rename(repositories / command.group(2))
    with hub_server.serving(repositories) as server:
        url = server.url
        first = run_as_typed(command.group(1), tmp_path, HF_ENDPOINT=url)
        assert server.seen
    assert first == run_as_typed(command.group(1), tmp_path, HF_ENDPOINT=url, HF_HUB_OFFLINE="1")
    text, words = first  # each word is followed by its probability
    assert text == "The capital of [MASK] is Paris." and len(words.split()) == 10
    assert set(words.split()[::2]) <= {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "river"}


def run_as_typed(command, tmp_path, **variables):
    """Returns the lines that a command of README prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, *shlex.split(command)],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
        env=environment | {"HF_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_token_goes_to_the_hub_alone_and_is_never_told(repositories, tmp_path):
    with hub_server.serving(repositories) as server:
        server.private.add("google-bert/tiny")
        lines, err = answers(ask(tmp_path, server.url, "google-bert/tiny"))
        assert (
            lines[0].startswith("ERROR google-bert/tiny: no such file or folder, nor a repository")
            and "HF_TOKEN" in lines[0]
        )
        lines, err = answers(ask(tmp_path, server.url, "google-bert/tiny", HF_TOKEN="hf_secret"))
        assert lines[0].startswith("FOLDER") and "hf_secret" not in "".join(lines) + err
        assert ("GET", f"google-bert/tiny/resolve/{hub_server.SHA}/config.json", "Bearer hf_secret") in server.seen


@pytest.mark.slow  # huggingface_hub tries five times, a minute in all
def test_a_cut_connection_is_told_and_the_same_command_goes_on(repositories, tmp_path):
    with hub_server.serving(repositories) as server:
        server.cut_after["model.safetensors"] = 100
        lines, _ = answers(ask(tmp_path, server.url, "google-bert/tiny"))
        assert lines[0].startswith(
            (
                "ERROR google-bert/tiny: only a part could be downloaded",
                "ERROR google-bert/tiny: no such file or folder, and the Hugging Face hub cannot be reached",
            )
        )
        server.cut_after.clear()
        both = [ask(tmp_path, server.url, "google-bert/tiny") for _ in range(2)]  # two at once
        found = {answers(process)[0][0] for process in both}
    (folder,) = (line.removeprefix("FOLDER ") for line in found)
    assert (pathlib.Path(folder) / "model.safetensors").read_bytes() == (
        repositories / "google-bert/tiny/model.safetensors"
    ).read_bytes()


def test_the_files_that_are_wanted():
    sharded = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    small = [
        "config.json",
        "sentencepiece.bpe.model",
        "1_Pooling/config.json",
        "modules.json",
        "config_sentence_transformers.json",
    ]
    others = [
        "README.md",
        "run.py",
        "pytorch_model.bin",
        "flax_model.msgpack",
        "onnx/model.onnx",
        "model.safetensors.py",
        "a/config.json",
    ]
    assert hub.files_to_download([*others, *small, *sharded], "a/b") == [*small, *sharded]
    assert hub.files_to_download(["pytorch_model.bin", "config.json"], "a/b") == ["config.json", "pytorch_model.bin"]
    with pytest.raises(ValueError, match=r"a/b: expected model.safetensors, .* got README.md, rust_model.ot"):
        hub.files_to_download(["rust_model.ot", "README.md"], "a/b")


def test_what_can_be_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert hub.is_name("google-bert/bert-base-uncased") and hub.is_name("a/b@refs/pr/1")
    for path in ("runs/mine", "./runs", "../a", ".a/b", "a/b/c", "bert", "/a/b", "a//b", "a/b@", "https://a/b", ""):
        assert not hub.is_name(path), path
    (tmp_path / "google-bert").mkdir()
    (tmp_path / "google-bert/here").mkdir()
    assert hub.local_folder("google-bert/here") == "google-bert/here"  # a path that exists wins
    told = "runs/typo: no checkpoint found there: no such file or folder, nor is it the name of a repository"
    with pytest.raises(ValueError, match=told):
        formats.read("runs/typo")


def test_a_zip_file_of_2018_is_read_as_it_is(tmp_path, golden):
    stored = stored_small("pretraining")
    formats.write(stored, "tf1", str(tmp_path / "uncased_L-1"))
    with zipfile.ZipFile(tmp_path / "uncased_L-1.zip", "w") as archive:
        for path in (tmp_path / "uncased_L-1").iterdir():
            archive.write(path, f"uncased_L-1/{path.name}")
        archive.writestr("../../outside.txt", "x")
    read = formats.read(str(tmp_path / "uncased_L-1.zip"))
    assert read.weights.keys() == stored.weights.keys()
    for name, weight in stored.weights.items():
        np.testing.assert_array_equal(read.weights[name].reshape(weight.shape), weight)
    assert not list(tmp_path.parent.glob("outside.txt"))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "x")
    (tmp_path / "damaged.zip").write_bytes((tmp_path / "uncased_L-1.zip").read_bytes()[:300])
    for name, told in (
        ("other", "expected a zip file of 2018 with bert_config.json, vocab.txt and a checkpoint, got a.txt"),
        ("damaged", "damaged zip file"),
    ):
        with pytest.raises(ValueError, match=told):
            formats.read(str(tmp_path / f"{name}.zip"))


def test_a_preset_of_keras_hub_goes_through_its_own_loader(tmp_path, monkeypatch):
    import keras_hub

    monkeypatch.chdir(tmp_path)
    stored = stored_small("", hidden_act="gelu")
    formats.write(stored, "keras_hub", "saved")
    asked = []

    def from_preset(name):
        asked.append(name)
        return keras_hub.models.BertBackbone.from_preset("saved")

    monkeypatch.setattr(hub, "_loaders", lambda _: (from_preset,))
    read = formats.read("bert_tiny_en_uncased")
    assert asked == ["bert_tiny_en_uncased"]
    np.testing.assert_array_equal(read.weights["layer_0/output/kernel"], stored.weights["layer_0/output/kernel"])
    with pytest.raises(ValueError, match="bert_of_nobody: no checkpoint found there"):
        formats.read("bert_of_nobody")
