"""NomicBERT, GTE, JinaBERT and jina-embeddings-v3: the names and keys of published files, which member a file is of,
what is refused, and adapters of halves of gated units.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import official_bert
from official_bert.models.interchange import formats
from official_bert.models.interchange.adapted_models import adapted
from official_bert.models.interchange.members.family import member_of
from official_bert.models.interchange.stored_models import Adapters, LowRank

FAMILY = pathlib.Path(__file__).parents[3] / "golden" / "family"
NOMIC, GTE = FAMILY / "nomic_bert/NomicBertForMaskedLM", FAMILY / "gte/GteForMaskedLM"
JINA, CODE = FAMILY / "jina_bert/JinaBertForMaskedLM", FAMILY / "jina_bert_code/JinaBertForMaskedLM"
MODERN = FAMILY / "modernbert/ModernBertForMaskedLM"
JINA_V3 = FAMILY / "jina_embeddings_v3/JinaEmbeddingsV3ForMaskedLM"


def values_of(folder):
    return json.loads((folder / "config.json").read_text())


def copy(source, folder, tensors=None, drop=(), **values):
    """Writes a model with other tensors or other keys."""
    folder.mkdir(exist_ok=True)
    save_file(tensors or load_file(source / "model.safetensors"), folder / "model.safetensors")
    kept = {key: value for key, value in values_of(source).items() if key not in drop}
    (folder / "config.json").write_text(json.dumps(kept | values))
    return str(folder)


def assert_same(folder, source):
    one, other = formats.read(folder), formats.read(str(source))
    assert one.config == other.config
    for name, weight in other.weights.items():
        if name in one.weights or one.head == other.head:
            np.testing.assert_array_equal(one.weights[name], weight, err_msg=name)
    return one


def test_published_keys_and_names_of_nomic_bert(tmp_path):
    tensors = {
        name.removeprefix("nomic_bert."): tensor
        for name, tensor in load_file(NOMIC / "model.safetensors").items()
        if not name.startswith("cls.")
    }
    sizes = {"n_embd": 24, "n_head": 4, "n_layer": 2, "n_inner": 26, "n_positions": 48, "layer_norm_epsilon": 1e-12}
    published = sizes | {"activation_function": "swiglu", "rotary_emb_base": 1000, "summary_proj_to_labels": True}
    drop = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "max_position_embeddings")
    drop += ("layer_norm_eps", "hidden_act", "rope_parameters", "head_dim")
    folder = copy(NOMIC, tmp_path / "hub", tensors, drop, architectures=["NomicBertModel"], **published)
    assert assert_same(folder, NOMIC).head == ""


def test_published_keys_and_names_of_gte(tmp_path):
    tensors = {f"new.{name.removeprefix('gte.')}" if name.startswith("gte.") else name: tensor for name, tensor in
               load_file(GTE / "model.safetensors").items()}  # fmt: skip
    # ntk: a base of s times theirs, and angles divided by s^(2/d), d = 6
    folder = copy(
        GTE, tmp_path / "hub", tensors, ("rope_parameters",), model_type="new", architectures=["NewForMaskedLM"],
        rope_theta=500000, rope_scaling={"type": "ntk", "factor": 8.0}, position_embedding_type="rope",
    )  # fmt: skip
    stored = formats.read(folder)
    assert (stored.config.rotary, stored.config.rotary_factor) == (4e6, pytest.approx(2.0))
    assert dataclasses.replace(stored.config, rotary=160000.0, rotary_factor=1.0) == formats.read(str(GTE)).config
    formats.write(stored, "hugging_face", str(tmp_path / "written"))
    written = values_of(tmp_path / "written")
    assert (written["model_type"], written["architectures"]) == ("gte", ["GteForMaskedLM"])
    assert written["rope_parameters"] == {"rope_type": "linear", "rope_theta": 4e6, "factor": pytest.approx(2.0)}
    assert formats.read(str(tmp_path / "written")).config == stored.config


@pytest.mark.parametrize("source", [JINA, CODE])
def test_a_class_with_a_head_may_hold_the_encoder_alone(tmp_path, source):
    tensors = {
        name.removeprefix("bert."): tensor
        for name, tensor in load_file(source / "model.safetensors").items()
        if not name.startswith("cls.")
    }
    assert assert_same(copy(source, tmp_path / "bare", tensors), source).head == ""


def test_which_bert_is_a_jina_bert():
    base, code = values_of(JINA), values_of(CODE)
    plain = values_of(FAMILY / "bert/BertForPreTraining")
    of_code = {"alibi": True, "query_key_norm": True, "norm": "twice"}

    def fields(values):
        return member_of(values, "")[0].fixed

    assert fields(plain).get("alibi") is None
    assert fields(base).get("alibi") and "query_key_norm" not in fields(base)
    for values in (code, code | {"_name_or_path": "mine"}):
        assert of_code.items() <= fields(values).items()
    assert fields({**plain, "position_embedding_type": "alibi"}).get("alibi")


def test_adapters_of_tasks_are_left_out_with_a_warning(tmp_path):
    tensors = load_file(JINA_V3 / "model.safetensors")
    published = {}
    for name, tensor in tensors.items():
        if name.endswith(("Wqkv.weight", "word_embeddings.weight")):
            stem = name.removesuffix("weight") + "parametrizations.weight."
            published[f"{stem}original"] = tensor
            published[f"{stem}0.lora_A"] = np.ones((5, 2, tensor.shape[1]), "float32")
            published[f"{stem}0.lora_B"] = np.ones((5, len(tensor), 2), "float32")
        else:
            published[name] = tensor
    folder = copy(
        JINA_V3, tmp_path / "hub", published, ("rope_parameters",), model_type="xlm-roberta", rotary_emb_base=20000.0,
        position_embedding_type="rotary", architectures=["XLMRobertaForMaskedLM"], lora_rank=2,
    )  # fmt: skip
    assert any(
        "task adapters (lora_adaptations) are left out" in text for text in assert_same(folder, JINA_V3).warnings
    )
    assert not formats.read(str(JINA_V3)).warnings


@pytest.mark.parametrize(
    ("source", "change", "said"),
    [
        (NOMIC, {"moe_every_n_layers": 2}, "moe_every_n_layers"),
        (NOMIC, {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction"),
        (NOMIC, {"qkv_proj_bias": True}, "qkv_proj_bias"),
        (NOMIC, {"scale_attn_weights": False}, "scale_attn_weights"),
        (NOMIC, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (NOMIC, {"rope_parameters": None, "rope_scaling": {"type": "ntk", "factor": 2.0}}, "rope_scaling"),
        (NOMIC, {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e3, "factor": 2.0}}, "dynamic"),
        (NOMIC, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5}}, "rope"),
        (GTE, {"rope_parameters": None, "rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 0.5}}, "rope_scaling"),
        (GTE, {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        (GTE, {"logn_attention_scale": True}, "logn_attention_scale"),
        (GTE, {"rope_parameters": {"rope_type": "linear", "rope_theta": -1.0, "factor": 1.0}}, "rope_theta"),
        (JINA, {"feed_forward_type": "original"}, "feed_forward_type"),
        (JINA, {"position_embedding_type": "absolute"}, "position_embedding_type"),
        (JINA, {"emb_pooler": "cls"}, "emb_pooler"),
        (CODE, {"is_decoder": True}, "is_decoder"),
        (JINA_V3, {"rope_parameters": {"rope_type": "yarn", "rope_theta": 2e4, "factor": 2.0}}, "yarn"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(tmp_path, source, change, said):
    with pytest.raises(ValueError, match=said):
        official_bert.load_encoder(copy(source, tmp_path / "other", **change))


@pytest.mark.parametrize("source", [NOMIC, GTE, CODE], ids=["apart", "exchanged", "exchanged too"])
def test_adapters_of_gated_units_are_those_of_the_files_products(tmp_path, source):
    rng, base = np.random.default_rng(2), formats.read(str(source))
    products = {}
    for name in ("layer_0/intermediate", "layer_1/attention/query"):
        kernel = base.weights[f"{name}/kernel"]
        down, up = rng.normal(size=(len(kernel), 2)), rng.normal(size=(2, kernel.shape[1]))
        products[name] = LowRank(down.astype("float32"), up.astype("float32"), 0.5)
    weights = adapted.merged(base.weights, products)
    model = dataclasses.replace(base, weights=weights, adapters=Adapters(products, (), base.folder))
    formats.write(model, "peft", str(tmp_path / "peft"))
    again = formats.read(str(tmp_path / "peft"), base=str(source))
    # PEFT's formula on the tensors of the file: W + alpha / r B A
    tensors, low_rank = load_file(source / "model.safetensors"), load_file(tmp_path / "peft/adapter_model.safetensors")
    config = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    for name in [name for name in low_rank if name.endswith(".lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        factor = config["alpha_pattern"].get(module, config["lora_alpha"]) / config["rank_pattern"].get(
            module, config["r"]
        )
        (there,) = (key for key in tensors if key.endswith(f"{module}.weight"))
        tensors[there] += factor * low_rank[name.replace("lora_A", "lora_B")] @ low_rank[name]
    by_hand = formats.read(copy(source, tmp_path / "merged", tensors))
    for name, weight in again.weights.items():
        np.testing.assert_allclose(weight, weights[name], atol=1e-6, err_msg=name)
        np.testing.assert_allclose(by_hand.weights[name], weights[name], atol=2e-6, err_msg=name)


@pytest.mark.parametrize("unit", ["geglu", "reglu"])
def test_the_gate_of_a_jina_bert_is_not_what_hidden_act_says(tmp_path, unit):
    config = formats.read(copy(JINA, tmp_path / "jina", hidden_act="silu", feed_forward_type=unit)).config
    assert (config.hidden_act, config.masked_lm_act) == ({"geglu": "gelu_erf", "reglu": "relu"}[unit], "silu")
    formats.write(formats.read(str(tmp_path / "jina")), "hugging_face", str(tmp_path / "written"))
    written = values_of(tmp_path / "written")
    assert (written["hidden_act"], written["feed_forward_type"]) == ("silu", unit)


def test_the_words_of_gte_have_gelu_in_transformers_and_hidden_act_in_the_authors_class(tmp_path):
    for model_type, act in (("gte", "gelu_erf"), ("new", "relu")):
        folder = copy(GTE, tmp_path / model_type, hidden_act="relu", model_type=model_type, architectures=[])
        assert (config := formats.read(folder).config).masked_lm_act == act
        assert config.hidden_act == "relu"
    with pytest.raises(ValueError, match="no Hugging Face model has model.masked_lm_act 'relu'"):
        formats.write(formats.read(str(tmp_path / "new")), "hugging_face", str(tmp_path / "written"))


@pytest.mark.parametrize(
    ("tokenizer", "kind", "said"),
    [
        (
            {"model": {"type": "BPE", "byte_fallback": True}},
            "GemmaTokenizerFast",
            r"Gemma's BPE is not supported: give ids \(load_encoder, an export without raw text\)",
        ),
        (
            {"model": {"type": "BPE", "dropout": None, "byte_fallback": True, "vocab": {}}},
            "PreTrainedTokenizerFast",
            r"Gemma's BPE is not supported: give ids \(load_encoder, an export without raw text\)",
        ),
        (
            {"model": {"type": "BPE", "vocab": {}, "merges": []}, "normalizer": {"type": "Lowercase"}},
            "RobertaTokenizer",
            r"tokenizer\.json: normalizer: expected none or NFC, got Lowercase; or give ids \(load_encoder",
        ),
        (
            {"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": {"type": "Whitespace"}},
            "RobertaTokenizer",
            r"pre_tokenizer\.type: 'Whitespace' is not supported; expected 'ByteLevel'; or give ids",
        ),
    ],
    ids=["mmBERT", "mmBERT, generic class", "JinaBERT for Chinese", "JinaBERT for German"],
)
def test_a_model_whose_tokenizer_is_refused_takes_ids(tmp_path, tokenizer, kind, said):
    folder = copy(JINA if kind.startswith("Roberta") else MODERN, tmp_path / "model")
    pathlib.Path(folder, "tokenizer.json").write_text(json.dumps(tokenizer))
    pathlib.Path(folder, "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    for refused in (official_bert.load_tokenizer, official_bert.Predictor):
        with pytest.raises(ValueError, match=said):
            refused(folder)
    assert official_bert.load_encoder(folder).config == formats.read(folder).config


@pytest.mark.slow
def test_ids_are_exported_without_a_tokenizer(tmp_path):
    folder = copy(MODERN, tmp_path / "model")
    encoder = official_bert.load_encoder(folder)
    ids = np.array([[5, 9, 7, 8], [6, 5, 0, 0]], np.int32)
    rows = {"input_ids": ids, "input_mask": np.sign(ids), "segment_ids": 0 * ids}
    encoder.export(
        str(tmp_path / "ids"), input_signature=[{name: tf.TensorSpec([None, None], tf.int32, name) for name in rows}]
    )
    answers = tf.saved_model.load(str(tmp_path / "ids")).signatures["serving_default"]
    found = answers(**{name: tf.constant(value) for name, value in rows.items()})["sequence_output"]
    np.testing.assert_allclose(found, encoder(rows)["sequence_output"], atol=1e-5)


# The encoder's rows of 8,192 tokens after those of 16: how many MB more the process had at its peak.
LONG_ROW = """
import pathlib, re, sys
import numpy as np
import tensorflow as tf
import official_bert

def peak():
    found = re.search(r"VmHWM:\\s*([0-9]+) kB", pathlib.Path("/proc/self/status").read_text())
    return int(found[1]) / 1024

encoder = official_bert.load_encoder(sys.argv[1])
call = tf.function(encoder) if sys.argv[2] == "graph" else encoder
rows = tf.TensorSpec([None, None], tf.int32)
if sys.argv[2] == "graph":
    call = call.get_concrete_function({name: rows for name in ("input_ids", "input_mask", "segment_ids")})

def run(length):
    ids = tf.ones((1, length), tf.int32)
    return call({"input_ids": ids, "input_mask": ids, "segment_ids": 0 * ids})["sequence_output"]

run(16)
before = peak()
assert np.isfinite(run(8192).numpy()).all()
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of a process")
@pytest.mark.parametrize("call", ["eager", "graph"])
@pytest.mark.parametrize("source", [NOMIC, GTE, JINA, CODE, JINA_V3], ids=lambda path: path.parent.name)
def test_a_row_of_8192_tokens_takes_at_most_a_gigabyte_more(tmp_path, source, call):
    folder = copy(
        source, tmp_path / "model", drop=("head_dim",), num_attention_heads=12, max_position_embeddings=8194
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", LONG_ROW, folder, call], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[-1]) < 1000, done.stdout


def test_published_keys_of_ettin(tmp_path):
    published = {
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "layer_norm_eps": 1e-05,
        "position_embedding_type": "sans_pos",
        "deterministic_flash_attn": False,
        "gradient_checkpointing": False,
        "initializer_cutoff_factor": 2.0,
        "sparse_pred_ignore_index": -100,
        "sparse_prediction": False,
        "torch_dtype": "float32",
        "transformers_version": "4.48.0",
    }
    folder = copy(MODERN, tmp_path / "ettin", drop=("rope_parameters", "layer_types", "dtype"), **published)
    assert not assert_same(folder, MODERN).warnings


def test_a_modern_bert_may_have_silu(tmp_path):
    folder = copy(MODERN, tmp_path / "silu", hidden_activation="silu")
    assert formats.read(folder).config.hidden_act == "silu"
    formats.write(formats.read(folder), "hugging_face", str(tmp_path / "written"))
    assert values_of(tmp_path / "written")["hidden_activation"] == "silu"
