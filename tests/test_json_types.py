"""JSON files of others with values of wrong types: each load works, or ends in one line that names the folder."""

import itertools
import json
import shutil

import made_tokenizers
import numpy as np
import pytest
import tokenizers
from made_checkpoints import stored_small
from safetensors.numpy import load_file, save_file

from official_bert.models.interchange import formats
from official_bert.run_folder import RunFolder, tuned_for
from official_bert.storage.temporaries import original_paths
from official_bert.text import loading

VALUES = (None, False, True, 0, -1, 10**18, 0.5, "", "text " * 100, [], ["a"], {}, {"a": 1})
FEW = 3  # first entries of a long list or mapping, such as a vocabulary
WHOLE_SHARE, FAST_SHARE = 1, 20  # every n-th load
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}] + [
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
]
POOLING = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "include_prompt": True}
PROMPTS = {"prompts": {"query": "query: "}, "default_prompt_name": "query", "similarity_fn_name": "cosine"}


def member(name):
    def build(folder, golden):
        (source,) = list((golden / "family" / name).iterdir())[:1]
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.npz"))

    return build


def sharded(folder, golden):
    member("bert")(folder, golden)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    weight_map = dict.fromkeys(tensors, "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def sentences(folder, golden):
    member("bert")(folder, golden)
    (folder / "1_Pooling").mkdir()
    lengths = {"max_seq_length": 16, "do_lower_case": False}
    for name, values in {
        "modules.json": MODULES,
        "1_Pooling/config.json": POOLING,
        "config_sentence_transformers.json": PROMPTS,
        "sentence_bert_config.json": lengths,
    }.items():
        (folder / name).write_text(json.dumps(values))


def word_piece():
    library = tokenizers.BertWordPieceTokenizer()
    library.train_from_iterator(made_tokenizers.TEXT, vocab_size=400, show_progress=False)
    return library._tokenizer.to_str()


def unigram():
    library = tokenizers.Tokenizer(tokenizers.models.Unigram())
    library.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.NFKC()])
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = tokenizers.trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>")
    library.train_from_iterator(made_tokenizers.TEXT, trainer)
    return library.to_str()


def mpnet():
    vocab = {token: place for place, token in enumerate(made_tokenizers.word_pieces())}
    normalizer = {"type": "BertNormalizer", "clean_text": True, "lowercase": True, "strip_accents": None}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab}
    steps = {"normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"}, "model": model}
    return json.dumps({"added_tokens": [{"id": 0, "content": "<s>", "special": True}], **steps})


LIBRARY = {
    "wordpiece": (word_piece, "BertTokenizer"),
    "unigram": (unigram, "XLMRobertaTokenizer"),
    "mpnet": (mpnet, "MPNetTokenizer"),
}


def tokenizer(kind):
    def build(folder, golden):
        member("bert")(folder, golden)
        made_tokenizers.write(folder, "bert" if kind in LIBRARY else kind)
        if kind in LIBRARY:
            (folder / "vocab.txt").unlink()
            make, name = LIBRARY[kind]
            (folder / "tokenizer.json").write_text(make())
            (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "do_lower_case": True}))
        mask, unknown = ("[MASK]", "[UNK]") if kind == "wordpiece" else ("<mask>", "<unk>")
        if kind in ("modernbert", "mpnet"):
            mask, unknown = "[MASK]" if kind == "modernbert" else "<mask>", "[UNK]"
        special = {"mask_token": {"content": mask, "lstrip": False, "normalized": False}, "unk_token": unknown}
        (folder / "special_tokens_map.json").write_text(json.dumps(special))

    return build


def adapter(folder, golden):
    member("bert")(folder / "base", golden)
    module = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_"
    width = json.loads((folder / "base/config.json").read_text())["hidden_size"]
    shapes = {"A": (2, width), "B": (width, 2)}
    save_file(
        {f"{module}{part}.weight": np.ones(shapes[part], "float32") for part in "AB"},
        folder / "adapter_model.safetensors",
    )
    values = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "r": 2,
        "lora_alpha": 8,
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "target_modules": ["query"],
        "modules_to_save": None,
        "rank_pattern": {"key": 2},
        "alpha_pattern": {"key": 4},
        "base_model_name_or_path": "owner/base",
    }
    (folder / "adapter_config.json").write_text(json.dumps(values))


def preset(folder, golden):
    formats.write(formats.read(str(golden / "tf1_bert/bert_model.ckpt")), "keras_hub", str(folder))


def run(folder, golden):
    formats.write(stored_small("classifier"), "ours", str(folder))
    (folder / "best").mkdir()
    for name, values in {
        "data.json": {"train": "ab", "rows": 3, "columns": {"text": "x"}},
        "best/metric.json": {"metric": "accuracy", "value": 0.5, "step": 1},
        "tuned.json": {"steps": {"0": {"threshold": 0.5}}},
        "search.json": {"best": "run_1", "runs": [{"name": "run_1", "value": 0.5}]},
    }.items():
        (folder / name).write_text(json.dumps(values))


# Folders, and their files of JSON.
FILES = {
    "bert": (member("bert"), ["config.json"]),
    "modernbert": (member("modernbert"), ["config.json"]),
    "deberta": (member("deberta_v3"), ["config.json"]),
    "albert": (member("albert"), ["config.json"]),
    "big_bird": (member("big_bird_full"), ["config.json"]),
    "sharded": (sharded, ["model.safetensors.index.json"]),
    "sentences": (
        sentences,
        ["modules.json", "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json"],
    ),
    "wordpiece": (tokenizer("wordpiece"), ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]),
    "unigram": (tokenizer("unigram"), ["tokenizer.json"]),
    "mpnet": (tokenizer("mpnet"), ["tokenizer.json"]),
    "modern": (tokenizer("modernbert"), ["tokenizer.json"]),
    "bytes": (tokenizer("roberta"), ["tokenizer.json"]),
    "adapter": (adapter, ["adapter_config.json"]),
    "preset": (preset, ["config.json"]),
    "run": (run, ["best/metric.json", "tuned.json", "search.json", "data.json"]),
}


def places(value, path=()):
    """Yields the places in a JSON value, itself first; of long lists and mappings those of the first entries."""
    yield path
    items = [*value.items()] if isinstance(value, dict) else [*enumerate(value)] if isinstance(value, list) else []
    for key, inner in items[: FEW if len(items) > 60 else None]:
        yield from places(inner, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def load(folder, name):
    if name == "run":
        run_folder = RunFolder(str(folder))
        for ask in (lambda: run_folder.origin, lambda: run_folder.best_of_search, lambda: run_folder.chosen_step):
            ask()
        tuned_for(str(folder / "ckpt-0"))
    stored = formats.read(str(folder), base=str(folder / "base") if name == "adapter" else "")
    formats.make_model(stored) if name in ("bert", "adapter") else None
    if vocab_file := formats.vocab_file_of(stored):
        loading.load(vocab_file)


def problem_of(folder, name):
    """Loads a folder; returns what is wrong about how it ends, "" if nothing is."""
    try:
        load(folder, name)
    except ValueError as error:
        told = original_paths(str(error))
        if "\n" in told or len(told) > 1500 or str(folder) not in told:
            return f"ValueError {told[:300]!r}"
    except Exception as error:
        return f"{type(error).__name__} {str(error)[:200]!r}"
    return ""


def check(golden, tmp_path, name, share):
    build, files = FILES[name]
    build(folder := tmp_path / name, golden)
    load(folder, name)  # as it is, it is read
    problems, count = [], 0
    for file in files:
        original = (folder / file).read_text()
        values = json.loads(original)
        for number, (place, new) in enumerate(itertools.product(places(values), VALUES)):
            if number % share == len(name) % share:
                (folder / file).write_text(json.dumps(replaced(values, place, new)))
                count += 1
                if problem := problem_of(folder, name):
                    problems.append(f"{file}: {'.'.join(map(str, place))} = {new!r:.30}: {problem}")
        (folder / file).write_text(original)
    assert not problems, f"{len(problems)} of {count}:\n" + "\n".join(problems)
    return count


@pytest.mark.parametrize("name", FILES)
def test_a_share_of_wrong_types_ends_in_one_line(name, golden, tmp_path):
    assert check(golden, tmp_path, name, FAST_SHARE) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_wrong_types_end_in_one_line(name, golden, tmp_path):
    assert check(golden, tmp_path, name, WHOLE_SHARE) > 50
