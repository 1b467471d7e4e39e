"""What changes the computation and is not computed is refused by name; a configuration that no member has stays with us."""

import json
import pathlib
import shutil

import pytest
from made_checkpoints import stored_small
from safetensors.numpy import load_file, save_file

from official_bert.config import ModelConfig
from official_bert.models.interchange import formats
from official_bert.models.interchange.members.family import FAMILY, member_for

ROOT = pathlib.Path(__file__).parents[4]
FIXTURES = ROOT / "tests" / "golden" / "family"


@pytest.mark.parametrize(("model", "changes", "message"), [
    ("bert/BertForPreTraining", {"embedding_size": 16}, "embedding_size: 16 is not computed here in a model of this type"),
    ("bert/BertForPreTraining", {"rope_scaling": {"type": "linear"}}, "rope_scaling: .* is not computed here"),
    ("roberta/RobertaForMaskedLM", {"relative_attention_num_buckets": 32}, "relative_attention_num_buckets: 32 is not computed here"),
    ("roberta/RobertaForMaskedLM", {"position_embedding_type": "relative_key_query"}, "position_embedding_type: 'relative_key_query'"),
    ("roberta/RobertaForMaskedLM", {"pad_token_id": None}, "config.json: pad_token_id: expected the padding's id"),
    ("roberta/RobertaForMaskedLM", {"architectures": ["RobertaForCausalLM"]}, "expected one of RobertaModel, .* got RobertaForCausalLM"),
    ("mpnet/MPNetForMaskedLM", {"relative_attention_num_buckets": 16}, "expected at least 32, which the code counts in, got 16"),
    ("electra_generator/ElectraForMaskedLM", {"summary_type": "mean"}, "summary_type: 'mean' is not computed here; expected 'first'"),
    ("electra_generator/ElectraForMaskedLM", {"quantization_config": {"bits": 4}}, "quantization_config: .* is not computed here"),
    ("albert/AlbertForPreTraining", {"num_hidden_groups": 4}, "model.layers_in_group: expected num_hidden_layers .3. to be"),
    ("deberta_v3/DebertaV2ForMaskedLM", {"conv_kernel_size": 3}, "conv_kernel_size: 3 is not computed here"),
    ("deberta_v3/DebertaV2ForMaskedLM", {"pos_att_type": "c2p"}, "pos_att_type: expected p2c and c2p, got 'c2p'"),
    ("deberta_v3/DebertaV2ForMaskedLM", {"position_buckets": -1}, "position_buckets: expected a number of buckets, got -1"),
    ("distilbert/DistilBertForMaskedLM", {"activation": "silu"}, "activation: expected one of .* got 'silu'"),
    ("distilbert/DistilBertForMaskedLM", {"activation": ["gelu"]}, r"activation: expected one of .* got \['gelu'\]"),
    ("bert/BertForPreTraining", {"architectures": True}, "config.json: architectures: expected a list of names, got True"),
    ("bert/BertForPreTraining", {"architectures": {"a": 1}}, "config.json: architectures: expected a list of names"),
    ("bert/BertForPreTraining", {"architectures": [1]}, "config.json: architectures: expected a list of names"),
    ("bert/BertForPreTraining", {"model_type": ["bert"]}, "config.json: model_type: expected a name"),
    ("bert/BertForSequenceClassification", {"problem_type": ["regression"]}, "config.json: problem_type: expected one of"),
    ("albert/AlbertForPreTraining", {"num_hidden_groups": "1"}, "config.json.layer_groups: expected int, got "),
    ("deberta_v3/DebertaV2ForMaskedLM", {"position_buckets": "8"}, "config.json: expected the values of a configuration of DebertaV2: "),
    ("deberta_v3/DebertaV2ForMaskedLM", {"pos_att_type": 5}, "config.json: ")])
def test_keys_that_change_the_computation_are_refused(model, changes, message, tmp_path):
    folder = shutil.copytree(FIXTURES / model, tmp_path / "copy")
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        formats.read(str(folder))


@pytest.mark.parametrize("kind", ["t5", "xlnet", "funnel", "gpt2", "bart", "big_bird", "longformer", "modernbert", "deberta"])
def test_other_types_are_refused_with_the_list_of_those_that_are_computed(kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "architectures": ["Other"]}))
    with pytest.raises(ValueError, match=f"model_type bert, roberta, .*albert.*, got model_type '{kind}'"):
        formats.read(str(tmp_path))


def test_a_combination_that_no_member_has_is_kept_by_our_format_alone(tmp_path):
    config = ModelConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
                         first_position=3, relative_buckets=8)
    with pytest.raises(ValueError, match="no model of Hugging Face's has model.*relative_buckets 8.*only --to=ours can hold it"):
        member_for(config)


@pytest.mark.parametrize(("changes", "message"), [
    ({"position_buckets": 8, "relative_buckets": 32}, "position_buckets: expected 0 beside relative_buckets or first_position"),
    ({"position_buckets": 8, "first_position": 2}, "position_buckets: expected 0 beside relative_buckets or first_position"),
    ({"position_buckets": 512}, "position_buckets: expected 0 or an even number from 4 to below position_span .512., got 512"),
    ({"first_position": 512}, "first_position: expected less than max_position_embeddings .512., got 512"),
    ({"layers_in_group": 2}, "layers_in_group: expected 1 without layer_groups, got 2"),
    ({"relative_buckets": 6}, "relative_buckets: expected 0 or a multiple of 4, got 6"),
    ({"embedding_size": -1}, "embedding_size: expected at least 0, got -1")])
def test_fields_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"model.{message}"):
        ModelConfig(**changes)


@pytest.mark.parametrize("name", ["tf1", "keras_hub"])
def test_formats_of_bert_alone_refuse_a_relative(name, tmp_path):
    with pytest.raises(ValueError, match=r"computes BERT alone, the model has pooler_act 'relu'"):
        formats.write(stored_small("", pooler_act="relu"), name, str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_a_spanbert_is_a_bert_without_the_head_for_sentences(tmp_path):
    formats.write(stored_small("pretraining"), "hugging_face", str(tmp_path / "spanbert"))
    path = tmp_path / "spanbert" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in values.items() if key not in ("model_type", "architectures")}))
    stored = formats.read(str(tmp_path / "spanbert"))
    without = {name: weight for name, weight in stored.weights.items() if not name.startswith("next_sentence")}
    assert stored.head == "pretraining" and formats.make_model(formats.dataclasses.replace(stored, weights=without)).next_sentence is None


def test_the_newer_names_of_a_debertas_head_for_words_are_read(tmp_path):
    folder = shutil.copytree(FIXTURES / "deberta_v3/DebertaV2ForMaskedLM", tmp_path / "copy")
    older, tensors = formats.read(str(folder)), load_file(folder / "model.safetensors")
    names = {"cls.predictions.transform.dense.": "lm_predictions.lm_head.dense.", "cls.predictions.bias": "lm_predictions.lm_head.bias",
             "cls.predictions.transform.LayerNorm.": "lm_predictions.lm_head.LayerNorm."}
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    newer = formats.read(str(folder))
    assert not newer.unknown and set(newer.weights) == set(older.weights)


def test_the_page_has_a_row_for_every_member():
    page = (ROOT / "docs" / "family.md").read_text(encoding="utf-8")
    for member in FAMILY:
        for model_type in member.stems:
            assert f"`{model_type}`" in page
    for field in ("embedding_size", "first_position", "task_type_vocab_size", "layer_groups", "layers_in_group", "relative_buckets",
                  "position_buckets", "position_span", "pooler_act", "masked_lm_act"):
        assert f"`{field}" in page
