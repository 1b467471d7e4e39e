"""Damaged tokenizers, and those with special tokens alone: loaded, or refused in one line that names them."""

import io
import json
import random
import re
import shutil
import zipfile

import made_tokenizers
import pytest
import tensorflow as tf

from official_bert.storage import temporaries
from official_bert.storage.files import is_file
from official_bert.text import loading
from official_bert.text.graph_loading import load_graph
from official_bert.text.subwords import model_proto, tokenizer_files


def damaged(content, number):
    """Returns the content of a file with the damage of a number: cut off, some bits flipped, bytes replaced, left out
    or put in.
    """
    rng, data = random.Random(number), bytearray(content)
    place = rng.randrange(len(data))
    if number % 4 == 0:
        return bytes(data[:place])
    if number % 4 == 1:
        for _ in range(rng.choice([1, 1, 3, 20])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif number % 4 == 2:
        data[place : place + rng.randrange(1, 50)] = rng.randbytes(rng.randrange(50))
    else:  # the first pieces, and the settings at the end
        data[rng.choice([rng.randrange(400), len(data) - 1 - rng.randrange(400)])] = rng.randrange(256)
    return bytes(data)


def load_damaged(folder, numbers, with_graph=False):
    """Loads tokenizers of damaged models; returns how many could be loaded. Every other one must give one line."""
    files = {kind: made_tokenizers.write(folder / kind, kind) for kind in ("xlm_roberta", "camembert", "albert")}
    loaded = 0
    for number in numbers:
        kind = [*files][number % 3]
        path = next((folder / kind).glob("*.model"))
        path.write_bytes(damaged(made_tokenizers.unigram_model(kind == "albert"), number))
        try:
            tokenizer = loading.load(files[kind])
            tokenizer.encode_all(made_tokenizers.texts())
            for text in made_tokenizers.texts():
                tokenizer.tokenize_with_offsets(text)
            if with_graph:
                load_graph(files[kind])._pieces(tf.constant(made_tokenizers.texts()))
            loaded += 1
        except ValueError as error:
            assert type(error) is ValueError and re.fullmatch(f"{re.escape(files[kind])}: .+", str(error)), (
                number,
                repr(error),
            )
    return loaded


def test_damaged_sentencepiece_models_are_loaded_or_refused_in_one_line(tmp_path):
    assert 2 < load_damaged(tmp_path, range(24)) < 23


@pytest.mark.slow
def test_411_damaged_sentencepiece_models(tmp_path):
    assert 40 < load_damaged(tmp_path, range(1000, 1411), with_graph=True) < 371


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.pieces[0], "type", model_proto.NORMAL),
        lambda model: setattr(model.pieces[9], "type", model_proto.UNKNOWN),
        lambda model: setattr(model.pieces[9], "score", float("nan")),
        lambda model: setattr(model.pieces[9], "score", float("-inf")),
        lambda model: setattr(model.pieces[9], "piece", ""),
        lambda model: setattr(model.pieces[9], "piece", model.pieces[8].piece),
        lambda model: setattr(model.normalizer_spec, "precompiled_charsmap", b"\xff" * 40),
        lambda model: model.ClearField("pieces"),
        lambda model: [model.pieces.pop() for _ in model.pieces[1:]],
        lambda model: [model.pieces.pop() for _ in model.pieces[3:]],
    ],
    ids=[
        "no_unknown",
        "two_unknown",
        "nan",
        "infinite",
        "empty",
        "twice",
        "charsmap",
        "no_pieces",
        "unknown_alone",
        "special_alone",
    ],
)
@pytest.mark.parametrize("kind", ["xlm_roberta", "albert"])
def test_what_no_model_has_is_refused(tmp_path, change, kind):
    folder = made_tokenizers.write(tmp_path / kind, kind)
    path = next((tmp_path / kind).glob("*.model"))
    model = model_proto.read(path.read_bytes(), "x")
    if kind == "albert":  # <unk> is its second piece
        model.pieces[0].piece, model.pieces[1].piece = model.pieces[1].piece, model.pieces[0].piece
        model.pieces[0].type, model.pieces[1].type = model.pieces[1].type, model.pieces[0].type
    change(model)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=f"^{folder}: .+$") as caught:
        loading.load(folder)
    assert type(caught.value) is ValueError and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_word_pieces_of_special_tokens_alone_give_unknown_words(tmp_path, kind):
    folder = made_tokenizers.write(tmp_path / kind, kind)
    path = tmp_path / kind / "vocab.txt"
    special = (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        if kind == "bert"
        else ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"]
    )
    path.write_text("\n".join(special) + "\n")
    file = str(path) if kind == "bert" else folder
    assert loading.load(file).tokenize("two words") == ["[UNK]", "[UNK]"]
    tokenizer = load_graph(file)
    assert tokenizer.tokenize(tf.constant(["two words"])).to_list() == [[tokenizer.vocab["[UNK]"]] * 2]


@pytest.mark.parametrize("unknown", [None, 5, -1, "0", True])
def test_a_unigram_model_without_its_unknown_piece_is_refused(tmp_path, unknown):
    """The library loads one and fails at the first unknown character."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    settings = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "post_processor": None,
        "decoder": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": False,
            "vocab": [[token, 0.0] for token in special],
        },
    }
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizerFast"}')
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(
        ValueError,
        match=f"^{tmp_path}: tokenizer.json: model.unk_id: expected the id of an unknown piece, got {unknown}$",
    ):
        loading.load(str(tmp_path))


def test_a_bundle_gives_files_of_a_tokenizer_alone(tmp_path):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in ("tokenizer.json", "../outside", "/outside", "below/tokenizer.json", "program.py"):
            archive.writestr(name, "{}")
    files = tokenizer_files.unpack(content.getvalue(), "x")
    assert files == {"tokenizer.json": b"{}"}
    (tmp_path / "in").mkdir()
    tokenizer_files.write_files(files, str(tmp_path / "in"))
    assert not is_file(str(tmp_path / "outside"))


def test_paths_in_a_tokenizers_configuration_are_never_opened(tmp_path):
    """Published ones name files of the machine of those who made them; the names of a folder's files are fixed."""
    plain = made_tokenizers.write(tmp_path / "plain", "xlm_roberta")
    named = shutil.copytree(plain, tmp_path / "named")
    (named / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "XLMRobertaTokenizer",
                **dict.fromkeys(
                    (
                        "vocab_file",
                        "tokenizer_file",
                        "merges_file",
                        "sp_model_file",
                        "special_tokens_map_file",
                        "name_or_path",
                    ),
                    "/etc/hostname",
                ),
            }
        )
    )
    assert loading.load(str(named)).vocab == loading.load(plain).vocab
    assert set(tokenizer_files.read(str(named))) == set(tokenizer_files.read(plain))


def test_a_temporary_copy_goes_by_the_name_of_the_users_folder(tmp_path):
    temporary = tmp_path / "temporary" / "tokenizer.zip"
    temporary.parent.mkdir()
    temporary.write_bytes(tokenizer_files.pack({"spiece.model": b"no model"}))
    temporaries.stand_for(str(temporary), "models/theirs")
    with pytest.raises(ValueError, match="^models/theirs: expected a SentencePiece model, got another file"):
        loading.load(str(temporary))
