"""Google's checkpoints of ALBERT and ELECTRA, made of Hugging Face's tensors, compute Hugging Face's outputs, and are
written alike.
"""

import json
import pathlib
import re

import made_checkpoints
import made_tokenizers
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from official_bert.models.interchange import formats
from official_bert.models.interchange.names import as_matrix
from official_bert.models.interchange.projects import tf1

FIXTURES = pathlib.Path(__file__).parents[3] / "golden" / "family"
# From their conversion scripts: pairs of a part of Hugging Face's name and of Google's, in the order in which they are
# replaced.
ALBERT = (
    ("albert.", "bert/"),
    ("encoder/albert_layer_groups/0/albert_layers/0/", "encoder/transformer/group_0/inner_group_0/"),
    ("full_layer_layer_norm", "LayerNorm_1"),
    ("attention/LayerNorm", "LayerNorm"),
    ("attention/dense", "attention_1/output/dense"),
    ("attention/", "attention_1/self/"),
    ("attention_1/self/output", "attention_1/output"),
    ("ffn_output", "ffn_1/intermediate/output/dense"),
    ("0/ffn/", "0/ffn_1/intermediate/dense/"),
    ("pooler/", "pooler/dense/"),
    ("predictions/dense", "cls/predictions/transform/dense"),
    ("predictions/LayerNorm", "cls/predictions/transform/LayerNorm"),
    ("predictions/bias", "cls/predictions/output_bias"),
    ("sop_classifier/classifier/weight", "cls/seq_relationship/output_weights"),
    ("sop_classifier/classifier/bias", "cls/seq_relationship/output_bias"),
)
ELECTRA = (("attention/self", "attention/self"), ("layer/", "layer_"), ("dense_prediction", "dense_1"))
GENERATOR = (
    ("electra.embeddings", "shared.embeddings"),
    ("electra/", "generator/"),
    ("layer/", "layer_"),
    ("shared/", "electra/"),
    ("generator_lm_head/bias", "generator_predictions/output_bias"),
)


def googles(tensors, replaced):
    named = {}
    for name, value in tensors.items():
        for ours, theirs in replaced:
            name = name.replace(ours, theirs).replace(".", "/")
        tables = re.sub(r"(_embeddings)/weight$", r"\1", name)
        norms = re.sub(r"(LayerNorm\w*)/weight$", r"\1/gamma", re.sub(r"(LayerNorm\w*)/bias$", r"\1/beta", tables))
        named[norms.replace("/weight", "/kernel")] = value.T if norms.endswith("/weight") else value
    return named


def variables_in(folder):
    reader = tf.train.load_checkpoint(str(folder))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_written(stored, folder, wanted):
    """Checks that a model is written under the names that it was read from, with the same numbers."""
    formats.write(stored, "tf1", str(folder))
    found = variables_in(folder)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    again = formats.read(str(folder))
    assert (again.config, again.head, again.tokenizer) == (
        stored.config,
        stored.head,
        stored.tokenizer,
    ) and not again.unknown


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
    (tmp_path / "30k-clean.model").write_bytes(content := made_tokenizers.unigram_model(True))
    stored = formats.read(str(tmp_path))
    assert stored.do_lower_case and stored.tokenizer == {
        "spiece.model": content,
        "tokenizer_class.txt": b"AlbertTokenizer",
    }
    assert_written(stored, tmp_path / "again", variables_in(tmp_path))
    assert json.loads((tmp_path / "again" / "albert_config.json").read_text())["hidden_act"] == "gelu"


def test_groups_of_layers_have_their_numbers_in_googles_names(tmp_path):
    stored = made_checkpoints.stored_small("", embedding_size=4, layer_groups=2, layers_in_group=2, num_hidden_layers=8)
    formats.write(stored, "tf1", str(tmp_path / "google"))
    numbers = {
        re.findall(r"\d+", name)[0] + re.findall(r"\d+", name)[1]
        for name in variables_in(tmp_path / "google")
        if "group" in name
    }
    assert numbers == {"00", "01", "10", "11"}
    again = formats.read(str(tmp_path / "google"))
    assert again.config == stored.config
    for name, weight in again.weights.items():
        np.testing.assert_array_equal(weight, as_matrix(name, stored.weights[name]), err_msg=name)


def test_a_pair_of_google_is_a_discriminator_and_a_generator(tmp_path):
    folder, small = (
        FIXTURES / "electra_discriminator" / "ElectraForPreTraining",
        FIXTURES / "electra_generator" / "ElectraForMaskedLM",
    )
    named = googles(load_file(folder / "model.safetensors"), ELECTRA)
    generator = googles(load_file(small / "model.safetensors"), GENERATOR)
    named |= {name: value for name, value in generator.items() if "embeddings" in name}  # which both use
    tf1.write_checkpoint(named | generator, str(tmp_path))
    alone = formats.read(str(tmp_path))
    assert (
        alone.config.num_attention_heads == 1
        and "64 numbers" in alone.notes[0]
        and "--head=pretraining" in alone.notes[1]
    )
    for model, of_both, head, key in ((folder, named, "", "logits"), (small, generator, "pretraining", "mlm_logits")):
        values = json.loads((model / "config.json").read_text())
        (tmp_path / "bert_config.json").write_text(
            json.dumps({"hidden_size": values["hidden_size"], "num_attention_heads": values["num_attention_heads"]})
        )
        stored = formats.read(str(tmp_path), head)
        assert stored.head == (head or "replaced") and not stored.unknown
        expected, inputs = inputs_of(model)
        got, seen = formats.make_model(stored)(inputs)[key].numpy(), inputs["input_mask"] == 1
        if head:  # the discriminator's tables are the generator's here, but not in the fixture
            np.testing.assert_allclose(
                got[seen], expected["out.logits"][seen], rtol=0, atol=1e-5 * np.abs(expected["out.logits"]).max()
            )
        assert_written(stored, tmp_path / f"again{head}", of_both)


def test_a_discriminator_of_google_alone(tmp_path):
    folder = FIXTURES / "electra_discriminator" / "ElectraForPreTraining"
    tf1.write_checkpoint(googles(load_file(folder / "model.safetensors"), ELECTRA), str(tmp_path))
    (tmp_path / "bert_config.json").write_text('{"hidden_size": 32, "num_attention_heads": 4}')
    expected, inputs = inputs_of(folder)
    wanted, seen = expected["out.logits"], inputs["input_mask"] == 1
    got = formats.make_model(formats.read(str(tmp_path)))(inputs)["logits"].numpy()
    np.testing.assert_allclose(got[seen], wanted[seen], rtol=0, atol=1e-5 * np.abs(wanted).max())
    with pytest.raises(
        ValueError, match="expected the variables of a generator .generator/, generator_predictions/., got none"
    ):
        formats.read(str(tmp_path), "pretraining")


@pytest.mark.parametrize(
    ("head", "changes", "told"),
    [
        (
            "",
            {"embedding_size": 4, "layer_groups": 1, "hidden_act": "gelu_erf"},
            "Google's ALBERT has no hidden_act 'gelu_erf'",
        ),
        ("", {"pooler_act": "gelu_erf", "masked_lm_act": "gelu_erf"}, "Google's ELECTRA has no hidden_act 'gelu'"),
        (
            "classifier",
            {"pooler_act": "gelu_erf", "masked_lm_act": "gelu_erf", "hidden_act": "gelu_erf"},
            "no place for .*classifier/",
        ),
    ],
)
def test_what_googles_code_does_not_compute_is_refused(tmp_path, head, changes, told):
    with pytest.raises(ValueError, match=told):
        formats.write(made_checkpoints.stored_small(head, **changes), "tf1", str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())
