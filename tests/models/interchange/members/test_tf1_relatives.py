"""Google's checkpoints of ALBERT and ELECTRA, made of Hugging Face's tensors under Google's names, compute Hugging Face's outputs."""

import json
import pathlib
import re

import numpy as np
import pytest
from safetensors.numpy import load_file

from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import tf1

FIXTURES = pathlib.Path(__file__).parents[3] / "golden" / "family"
# From their conversion scripts: pairs of a part of Hugging Face's name and of Google's, in the order in which they are replaced.
ALBERT = (("albert.", "bert/"), ("encoder/albert_layer_groups/0/albert_layers/0/", "encoder/transformer/group_0/inner_group_0/"),
          ("full_layer_layer_norm", "LayerNorm_1"), ("attention/LayerNorm", "LayerNorm"), ("attention/dense", "attention_1/output/dense"),
          ("attention/", "attention_1/self/"), ("attention_1/self/output", "attention_1/output"),
          ("ffn_output", "ffn_1/intermediate/output/dense"), ("0/ffn/", "0/ffn_1/intermediate/dense/"), ("pooler/", "pooler/dense/"),
          ("predictions/dense", "cls/predictions/transform/dense"), ("predictions/LayerNorm", "cls/predictions/transform/LayerNorm"),
          ("predictions/bias", "cls/predictions/output_bias"), ("sop_classifier/classifier/weight", "cls/seq_relationship/output_weights"),
          ("sop_classifier/classifier/bias", "cls/seq_relationship/output_bias"))
ELECTRA = (("attention/self", "attention/self"), ("layer/", "layer_"), ("dense_prediction", "dense_1"))


def googles(tensors, replaced):
    named = {}
    for name, value in tensors.items():
        for ours, theirs in replaced:
            name = name.replace(ours, theirs).replace(".", "/")
        tables = re.sub(r"(_embeddings)/weight$", r"\1", name)
        norms = re.sub(r"(LayerNorm\w*)/weight$", r"\1/gamma", re.sub(r"(LayerNorm\w*)/bias$", r"\1/beta", tables))
        named[norms.replace("/weight", "/kernel")] = value.T if norms.endswith("/weight") else value
    return named


def inputs_of(folder):
    expected = np.load(folder / "expected.npz")
    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    rows = {ours: expected[f"in.{theirs}"] for ours, theirs in names.items()}
    return expected, rows | {"masked_lm_positions": np.tile(np.arange(20), (3, 1))}


def test_an_albert_of_google(tmp_path):
    folder = FIXTURES / "albert" / "AlbertForPreTraining"
    tf1.write_checkpoint(googles(load_file(folder / "model.safetensors"), ALBERT), str(tmp_path))
    with pytest.raises(ValueError, match="expected an albert_config.json beside it"):
        formats.read(str(tmp_path))
    values = json.loads((folder / "config.json").read_text()) | {"hidden_act": "gelu"}
    (tmp_path / "albert_config.json").write_text(json.dumps(values))
    stored = formats.read(str(tmp_path))
    assert stored.sentence_task == "sop" and not stored.unknown
    expected, inputs = inputs_of(folder)
    outputs = formats.make_model(stored)(inputs)
    for theirs, ours in (("prediction_logits", "mlm_logits"), ("sop_logits", "nsp_logits")):
        wanted, got = expected[f"out.{theirs}"], outputs[ours].numpy()
        seen = inputs["input_mask"] == 1 if wanted.ndim == 3 else slice(None)
        np.testing.assert_allclose(got[seen], wanted[seen], rtol=0, atol=1e-5 * np.abs(wanted).max())
    formats.write(stored, "hugging_face", str(tmp_path / "written"))
    assert formats.read(str(tmp_path / "written")).config == stored.config


def test_a_discriminator_of_google_and_no_generator(tmp_path):
    folder = FIXTURES / "electra_discriminator" / "ElectraForPreTraining"
    named = googles(load_file(folder / "model.safetensors"), ELECTRA)
    tf1.write_checkpoint(named | {"generator/encoder/layer_0/output/dense/bias": np.zeros(4, "float32")}, str(tmp_path))
    alone = formats.read(str(tmp_path))
    assert alone.config.num_attention_heads == 1 and "64 numbers" in alone.notes[0] and "generator" in alone.notes[1]
    values = json.loads((folder / "config.json").read_text())
    (tmp_path / "bert_config.json").write_text(json.dumps({"hidden_size": values["hidden_size"], "num_attention_heads": 4}))
    stored = formats.read(str(tmp_path))
    assert stored.head == "replaced" and not stored.unknown
    expected, inputs = inputs_of(folder)
    wanted, seen = expected["out.logits"], inputs["input_mask"] == 1
    got = formats.make_model(stored)(inputs)["logits"].numpy()
    np.testing.assert_allclose(got[seen], wanted[seen], rtol=0, atol=1e-5 * np.abs(wanted).max())
