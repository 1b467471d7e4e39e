"""Every key of every member's `config.json` is read, refused for what is not computed, or known to change nothing.

tests/golden/family/keys.json: the keys of the configurations of `transformers` with their defaults, by `model_type`.
"""

import dataclasses
import json
import pathlib

import pytest
from needed_tools import needs_torch
from safetensors.numpy import load_file, save_file
from test_with_hugging_face import KINDS, OF_AUTHORS, SIZES, run_torch

from official_bert.model_config import ModelConfig
from official_bert.models.interchange import formats
from official_bert.models.interchange.members.family import FAMILY, member_of
from official_bert.models.interchange.members.member import OF_OTHERS, PASSED_OVER, SWITCHES

FIXTURES = pathlib.Path(__file__).parents[3] / "golden" / "family"
KEYS = json.loads((FIXTURES / "keys.json").read_text())
# older keys say it, or both keys must agree
# in published files, and read by no code of the model
UNREAD = {"modernbert": {"position_embedding_type"}, "nomic_bert": {"summary_proj_to_labels"}}
MORE = {
    "deberta-v2": {"pooler_hidden_size": SIZES["hidden_size"]},
    **{
        model_type: {"rope_parameters": None, "head_dim": None}
        for model_type in ("modernbert", "nomic_bert", "gte", "jina_embeddings_v3")
    },
}


def others(value):
    """Returns other values of a key."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 2, 1]
    return ["another"] if isinstance(value, str) else [7, "another"]


def counts(member, base, key):
    """Whether another value of a key is refused, or gives another configuration."""
    usual = member.read_config(base, "")
    for value in others(base.get(key)):
        try:
            if member.read_config({**base, key: value}, "config.json") != usual:
                return True
        except ValueError as error:
            told = str(error)
            assert "config.json: " in told and (key in told or "expected a valid configuration" in told), told
            return True
    return False


def test_no_key_that_changes_the_computation_is_passed_over():
    assert {*KEYS, *OF_AUTHORS} == {model_type for member in FAMILY for model_type in member.stems}
    for model_type, defaults in KEYS.items():
        member, _ = member_of({"model_type": model_type}, "")
        keys = {*defaults, *KINDS[model_type][-1], *SWITCHES, *OF_OTHERS} - PASSED_OVER - UNREAD.get(model_type, set())
        kinds = [{**defaults, **kind, **MORE.get(model_type, {})} for kind in KINDS[model_type]]
        passed = [key for key in keys if not any(counts(member, kind, key) for kind in kinds)]
        assert passed == [] and len(keys) > 40, model_type


@pytest.mark.parametrize("model_type", KEYS)
def test_a_key_that_a_file_leaves_out_has_its_default(model_type):
    member, _ = member_of({"model_type": model_type}, "")
    needed = {key: value for key, value in KINDS[model_type][0].items() if key not in KEYS[model_type]}
    if model_type == "deberta-v2":
        needed |= {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]}
    written, left_out = (
        ModelConfig(**member.read_config(values, "")) for values in ({**KEYS[model_type], **needed}, needed)
    )
    # the tables' rows tell its size
    assert dataclasses.replace(written, vocab_size=1) == dataclasses.replace(left_out, vocab_size=1)


def test_what_is_passed_over_is_told(tmp_path):
    folder = FIXTURES / "distilbert/DistilBertForSequenceClassification"
    save_file(load_file(folder / "model.safetensors"), tmp_path / "model.safetensors")
    values = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(values | {"seq_classif_dropout": 0.3, "qa_dropout": 0.1, "colour": "red"})
    )
    notes = formats.read(str(tmp_path)).notes
    assert (
        "seq_classif_dropout 0.3: ignored, because options.dropout sets the dropout of a task's head in training"
        in notes
    )
    assert (
        "keys of its config.json that neither this package nor Hugging Face's classes know are ignored: colour" in notes
    )
    assert not any("passed over" in note for note in formats.read(str(folder)).notes)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_quantised_weights_are_refused_with_those_that_are_read(tmp_path, kind):
    folder = FIXTURES / "roberta/RobertaForMaskedLM"
    tensors = load_file(folder / "model.safetensors")
    name = "roberta.encoder.layer.0.attention.self.query.weight"
    save_file(tensors | {name: tensors[name].astype(kind)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    told = f"{name}: {kind}: quantised weights are not supported; expected one of float32, float16, bfloat16, float64"
    with pytest.raises(ValueError, match=told):
        formats.read(str(tmp_path))
    values = json.loads((folder / "config.json").read_text()) | {
        "quantization_config": {"quant_method": "bitsandbytes"}
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(
        ValueError, match="quantization_config: .* is not supported; expected none: no quantised weights"
    ):
        formats.read(str(tmp_path))


@pytest.mark.slow
@needs_torch
def test_the_keys_are_those_of_transformers_and_what_is_passed_over_changes_no_output(tmp_path):
    of_files = {
        "legacy",
        "dtype",
        "torch_dtype",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "architectures",
        "model_type",
        # of the files' form; the others are changed
        "transformers_version",
        "attn_implementation",
        "return_dict",
    }
    members = {model_type: member_of({"model_type": model_type}, "")[0] for model_type in KEYS}
    classes = {
        member.stems[model_type] + "ForSequenceClassification": (member, model_type)
        for model_type, member in members.items()
    }
    (tmp_path / "models.json").write_text(
        json.dumps(
            [
                [name, KINDS[model_type][0], sorted(PASSED_OVER - of_files - {*member.used})]
                for name, (member, model_type) in classes.items()
            ]
        )
    )
    answers = run_torch("keys", tmp_path / "models.json")
    assert [name for name, *_ in answers] == list(classes)
    for name, defaults, read, changing in answers:
        member, model_type = classes[name]
        assert KEYS[model_type] == {key: value for key, value in defaults.items() if key != "transformers_version"}, (
            name
        )
        table = {*member.keys.values(), *member.switches, *member.used}
        assert not set(read) - table - {*SWITCHES, *OF_OTHERS} - PASSED_OVER, name
        assert changing == [], name
