"""What changes the computation and is not computed is refused by name; a configuration that no member has stays with
us.
"""

import dataclasses
import json
import math
import pathlib
import re
import shutil

import numpy as np
import pytest
from made_checkpoints import stored_small
from safetensors.numpy import load_file, save_file

from official_bert.config import ModelConfig, check_length
from official_bert.model_config import OF_RELATIVES
from official_bert.models.interchange import formats
from official_bert.models.interchange.members.family import FAMILY, member_for

ROOT = pathlib.Path(__file__).parents[4]
FIXTURES = ROOT / "tests" / "golden" / "family"


MODERN, BIG_BIRD = "modernbert/ModernBertForMaskedLM", "big_bird_full/BigBirdForMaskedLM"


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (
            "bert/BertForPreTraining",
            {"embedding_size": 16},
            "embedding_size: 16 is not supported in a model of this type",
        ),
        ("bert/BertForPreTraining", {"rope_scaling": {"type": "linear"}}, "rope_scaling: .* is not supported"),
        (
            "roberta/RobertaForMaskedLM",
            {"relative_attention_num_buckets": 32},
            "relative_attention_num_buckets: 32 is not supported",
        ),
        (
            "roberta/RobertaForMaskedLM",
            {"position_embedding_type": "relative_key_query"},
            "position_embedding_type: 'relative_key_query'",
        ),
        ("roberta/RobertaForMaskedLM", {"pad_token_id": None}, "config.json: pad_token_id: expected the padding's id"),
        (
            "roberta/RobertaForMaskedLM",
            {"architectures": ["RobertaForCausalLM"]},
            "expected one of RobertaModel, .* got RobertaForCausalLM",
        ),
        (
            "mpnet/MPNetForMaskedLM",
            {"relative_attention_num_buckets": 16},
            "expected at least 32, which MPNet's code uses, got 16",
        ),
        (
            "electra_generator/ElectraForMaskedLM",
            {"summary_type": "mean"},
            "summary_type: 'mean' is not supported; expected 'first'",
        ),
        (
            "electra_generator/ElectraForMaskedLM",
            {"quantization_config": {"bits": 4}},
            "quantization_config: .* is not supported",
        ),
        (
            "albert/AlbertForPreTraining",
            {"num_hidden_groups": 4},
            "model.layers_in_group: expected num_hidden_layers .3. to be",
        ),
        (
            "albert/AlbertForPreTraining",
            {"num_hidden_groups": 0},
            "config.json: num_hidden_groups: expected at least 1, got 0",
        ),
        (
            "deberta_v3/DebertaV2ForMaskedLM",
            {"conv_kernel_size": 4},
            "conv_kernel_size: expected 0 or an odd number, with conv_groups 1",
        ),
        ("deberta_v2_conv/DebertaV2ForMaskedLM", {"conv_groups": 2}, "conv_kernel_size: expected .* got 3 and 2"),
        (
            "bert/BertForPreTraining",
            {"conv_kernel_size": 3},
            "conv_kernel_size: 3 is not supported in a model of this type",
        ),
        (
            BIG_BIRD,
            {"attention_type": "block_sparse", "block_size": 16},
            "attention_type: block_sparse is not supported with .*16, 3",
        ),
        (
            BIG_BIRD,
            {"attention_type": "windows"},
            "attention_type: expected original_full or block_sparse, got 'windows'",
        ),
        (BIG_BIRD, {"rescale_embeddings": True}, "rescale_embeddings: True is not supported"),
        ("deberta_v3/DebertaV2ForMaskedLM", {"pos_att_type": "c2p"}, "pos_att_type: expected p2c and c2p, got 'c2p'"),
        (
            "deberta_v3/DebertaV2ForMaskedLM",
            {"position_buckets": -1},
            "position_buckets: expected a number of buckets, got -1",
        ),
        (MODERN, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling: .* is not supported"),
        (MODERN, {"classifier_pooling": "late"}, "classifier_pooling: expected cls or mean, got 'late'"),
        (
            MODERN,
            {"layer_types": ["sliding_attention"] * 4},
            "layer_types: expected full_attention in the first layer and every n-th",
        ),
        (
            MODERN,
            {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2},
            "layer_types: expected full_attention in the first",
        ),
        (
            MODERN,
            {"layer_types": None, "global_attn_every_n_layers": 0},
            "global_attn_every_n_layers: expected at least 1, got 0",
        ),
        (
            MODERN,
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_parameters.full_attention: expected rope_type default",
        ),
        (
            MODERN,
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4, "factor": 4}}},
            "rope_parameters.full_attention: expected",
        ),
        (MODERN, {"local_attention": 1}, "local_attention: expected at least 2 tokens, got 1"),
        (MODERN, {"norm_bias": True}, "norm_bias: True is not supported; expected False"),
        (MODERN, {"tie_word_embeddings": False}, "tie_word_embeddings: False is not supported"),
        (MODERN, {"local_attention": "128"}, "config.json: expected a valid configuration of ModernBert: "),
        (
            MODERN,
            {"rope_parameters": [1]},
            "config.json: rope_parameters: expected full_attention and sliding_attention",
        ),
        (
            MODERN,
            {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
            "rope_parameters: expected full_attention and sliding_attention with their values, got {'rope_type'",
        ),
        (MODERN, {"layer_types": 5}, "config.json: layer_types: expected full_attention in the first .*, got 5$"),
        (MODERN, {"global_attn_every_n_layers": "3"}, "global_attn_every_n_layers: expected at least 1, got '3'"),
        ("distilbert/DistilBertForMaskedLM", {"activation": "mish"}, "activation: expected one of .*silu.* got 'mish'"),
        (
            "distilbert/DistilBertForMaskedLM",
            {"activation": ["gelu"]},
            r"activation: expected one of .* got \['gelu'\]",
        ),
        (
            "bert/BertForPreTraining",
            {"architectures": True},
            "config.json: architectures: expected a list of names, got True",
        ),
        (
            "bert/BertForPreTraining",
            {"architectures": {"a": 1}},
            "config.json: architectures: expected a list of names",
        ),
        ("bert/BertForPreTraining", {"architectures": [1]}, "config.json: architectures: expected a list of names"),
        ("bert/BertForPreTraining", {"model_type": ["bert"]}, "config.json: model_type: expected a name"),
        (
            "bert/BertForSequenceClassification",
            {"problem_type": ["regression"]},
            "config.json: problem_type: expected one of",
        ),
        ("albert/AlbertForPreTraining", {"num_hidden_groups": "1"}, "config.json.layer_groups: expected int, got "),
        (
            "deberta_v3/DebertaV2ForMaskedLM",
            {"position_buckets": "8"},
            "config.json: expected a valid configuration of DebertaV2: ",
        ),
        ("deberta_v3/DebertaV2ForMaskedLM", {"pos_att_type": 5}, "config.json: "),
    ],
)
def test_keys_that_change_the_computation_are_refused(model, changes, message, tmp_path):
    folder = shutil.copytree(FIXTURES / model, tmp_path / "copy")
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        formats.read(str(folder))


@pytest.mark.parametrize("kind", ["t5", "xlnet", "funnel", "gpt2", "bart", "longformer", "deberta"])
def test_other_types_are_refused_with_the_list_of_those_that_are_computed(kind, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "architectures": ["Other"]}))
    with pytest.raises(ValueError, match=rf"model_type bert, .*\), got model_type '{kind}' \(Other\)") as error:
        formats.read(str(tmp_path))
    listed = re.search(r"model_type ([^)]*)\)", str(error.value))[1].split(", ")
    assert {"bert", "xlm-roberta", "roberta", "albert", "deberta-v2", "modernbert", "nomic_bert", "gte"} <= {*listed}
    assert kind not in listed and len({*listed}) == len(listed)


def test_a_combination_that_no_member_has_is_kept_by_our_format_alone(tmp_path):
    config = ModelConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        first_position=3,
        relative_buckets=8,
    )
    with pytest.raises(
        ValueError, match="no Hugging Face model has model.*relative_buckets 8.*only --to=ours can hold it"
    ):
        member_for(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"position_buckets": 8, "relative_buckets": 32},
            "position_buckets: expected 0 beside relative_buckets or first_position",
        ),
        (
            {"position_buckets": 8, "first_position": 2},
            "position_buckets: expected 0 beside relative_buckets or first_position",
        ),
        (
            {"position_buckets": 512},
            "position_buckets: expected 0 or an even number from 4 to below position_span .512., got 512",
        ),
        ({"first_position": 512}, "first_position: expected less than max_position_embeddings .512., got 512"),
        ({"layers_in_group": 2}, "layers_in_group: expected model.layer_groups with it, got 2 without"),
        ({"relative_buckets": 6}, "relative_buckets: expected 0 or a multiple of 4, got 6"),
        ({"rotary": 1e4, "first_position": 2}, "rotary: expected 0 beside first_position: a model encodes"),
        (
            {"rotary": 1e4, "hidden_size": 36, "num_attention_heads": 12},
            "rotary: expected heads of an even size .*, got 3",
        ),
        ({"window": 64, "relative_buckets": 32}, "window: expected 0 beside relative_buckets, got 64"),
        (
            {"window": 64, "global_every": 1},
            "global_every: expected at least 2, so that some layers have the window, got 1",
        ),
        ({"window_rotary": 1e4}, "window_rotary: expected window and rotary with it"),
        ({"convolution": 2}, "convolution: expected 0, or an odd number of tokens beside at least 2 layers"),
        ({"convolution": 3, "norm": "pre"}, "convolution: expected 0, or an odd number of tokens beside .* norm post"),
        ({"distance_projections": True}, "distance_projections: expected model.position_buckets with it"),
        ({"window": -1}, "window: expected at least 0, got -1"),
        ({"pooler_norm": True, "embedding_size": 8}, "pooler_norm: expected False beside embedding_size"),
        ({"pooling": "mean", "bilstm_layers": 1}, "pooling: expected first beside bilstm_layers"),
        ({"embedding_size": -1}, "embedding_size: expected at least 0, got -1"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"model.{message}"):
        ModelConfig(**changes)


@pytest.mark.parametrize("name", ["tf1", "keras_hub"])
def test_formats_of_bert_alone_refuse_a_relative(name, tmp_path):
    with pytest.raises(ValueError, match=r"computes only BERT, but the model has pooler_act 'relu'"):
        formats.write(stored_small("", pooler_act="relu"), name, str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


def test_a_spanbert_is_a_bert_without_the_head_for_sentences(tmp_path):
    formats.write(stored_small("pretraining"), "hugging_face", str(tmp_path / "spanbert"))
    path = tmp_path / "spanbert" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(
        json.dumps({key: value for key, value in values.items() if key not in ("model_type", "architectures")})
    )
    stored = formats.read(str(tmp_path / "spanbert"))
    without = {name: weight for name, weight in stored.weights.items() if not name.startswith("next_sentence")}
    assert (
        stored.head == "pretraining"
        and formats.make_model(formats.dataclasses.replace(stored, weights=without)).next_sentence is None
    )


def test_the_newer_names_of_a_debertas_head_for_words_are_read(tmp_path):
    folder = shutil.copytree(FIXTURES / "deberta_v3/DebertaV2ForMaskedLM", tmp_path / "copy")
    older, tensors = formats.read(str(folder)), load_file(folder / "model.safetensors")
    names = {
        "cls.predictions.transform.dense.": "lm_predictions.lm_head.dense.",
        "cls.predictions.bias": "lm_predictions.lm_head.bias",
        "cls.predictions.transform.LayerNorm.": "lm_predictions.lm_head.LayerNorm.",
    }
    for old, new in names.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    newer = formats.read(str(folder))
    assert not newer.unknown and set(newer.weights) == set(older.weights)


def test_the_older_keys_of_a_modernbert_say_the_same(tmp_path):
    folder = shutil.copytree(FIXTURES / MODERN, tmp_path / "copy")
    newer, path = formats.read(str(folder)), folder / "config.json"
    values = {
        key: value
        for key, value in json.loads(path.read_text()).items()
        if key not in ("layer_types", "rope_parameters")
    }
    older = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    path.write_text(json.dumps(values | older))
    assert formats.read(str(folder)).config == newer.config
    for unread in ("sans_pos", "rope", "absolute"):
        path.write_text(json.dumps(values | older | {"position_embedding_type": unread}))
        assert formats.read(str(folder)).config == newer.config
    path.write_text(json.dumps(values | older | {"local_rope_theta": None}))
    assert formats.read(str(folder)).config.window_rotary == 160000.0


def test_a_big_bird_of_sparse_attention_takes_rows_up_to_those_of_which_full_attention_is_computed(tmp_path):
    stored = formats.read(str(FIXTURES / BIG_BIRD))
    rows = np.zeros((1024, 32), np.float32)
    large = dataclasses.replace(
        stored,
        config=dataclasses.replace(stored.config, max_position_embeddings=1024, row_limit=704),
        weights={**stored.weights, "embeddings/position_embeddings": rows},
    )
    formats.write(large, "hugging_face", str(tmp_path / "written"))
    values = json.loads((tmp_path / "written" / "config.json").read_text())
    assert (values["attention_type"], values["max_position_embeddings"]) == ("block_sparse", 1024)
    again = formats.read(str(tmp_path / "written"))
    assert again.config == large.config and again.config.longest_row == 704
    with pytest.raises(
        ValueError, match="max_seq_length: expected at most the model's 704 positions .model.row_limit., got 705"
    ):
        check_length(705, again.config)
    ids = np.ones((1, 705), np.int32)
    with pytest.raises(ValueError, match="sequence of 705 tokens is longer than the model's 704 .row_limit."):
        formats.make_model(again).encoder({"input_ids": ids, "input_mask": ids, "segment_ids": ids})


def test_published_files_of_deberta_v3_hold_the_head_of_the_discriminator(tmp_path):
    folder, rng = (
        shutil.copytree(FIXTURES / "deberta_v3/DebertaV2ForMaskedLM", tmp_path / "copy"),
        np.random.default_rng(0),
    )
    tensors = {
        name.replace("cls.predictions.", "lm_predictions.lm_head."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    shapes = {
        "dense.weight": (32, 32),
        "dense.bias": (32,),
        "LayerNorm.weight": (32,),
        "LayerNorm.bias": (32,),
        "classifer.weight": (1, 32),
        "classifer.bias": (1,),
    }
    head = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    save_file(
        tensors | {f"mask_predictions.{name}": tensor for name, tensor in head.items()}, folder / "model.safetensors"
    )
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({key: value for key, value in values.items() if key != "architectures"})
    )
    stored = formats.read(str(folder))
    assert stored.head == "replaced" and not stored.unknown
    model, ids = formats.make_model(stored), rng.integers(1, 90, (2, 9))
    inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    rows = np.asarray(model.encoder(inputs)["sequence_output"], np.float64)
    sums = rows[:, :1] + rows
    normal = (sums - sums.mean(-1, keepdims=True)) / np.sqrt(sums.var(-1, keepdims=True) + 1e-7)
    hidden = (normal * head["LayerNorm.weight"] + head["LayerNorm.bias"]) @ head["dense.weight"].T + head["dense.bias"]
    hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    wanted = hidden @ head["classifer.weight"][0] + head["classifer.bias"]
    np.testing.assert_allclose(model(inputs)["logits"], wanted, atol=1e-5 * np.abs(wanted).max())
    some = model({**inputs, "output_positions": np.array([[3, 1], [0, 8]])})["logits"]
    np.testing.assert_allclose(
        some, np.take_along_axis(wanted, np.array([[3, 1], [0, 8]]), axis=1), atol=1e-5 * np.abs(wanted).max()
    )
    formats.write(stored, "hugging_face", str(tmp_path / "written"))
    again = formats.read(str(tmp_path / "written"))
    assert again.head == "replaced" and set(again.weights) == set(stored.weights)


def test_the_page_has_a_row_for_every_member():
    page = (ROOT / "docs" / "family.md").read_text(encoding="utf-8")
    for member in FAMILY:
        for model_type in member.stems:
            assert f"`{model_type}`" in page
    for field in OF_RELATIVES:
        assert f"`{field}" in page
