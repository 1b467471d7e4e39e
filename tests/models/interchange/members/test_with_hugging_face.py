"""All classes of all members in sizes of their own: what Hugging Face computes, we do, and it reads the folders that we
write.
"""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
from needed_tools import TORCH, needs_torch

from official_bert.models.interchange import formats
from official_bert.models.interchange.members.family import FAMILY, member_of

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
}
DISTIL = {"vocab_size": 61, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "max_position_embeddings": 30}
# Arguments of configurations, by model_type; several where a member has several kinds.
KINDS = {
    "bert": [SIZES | {"hidden_act": "relu"}],
    "ernie": [SIZES, SIZES | {"use_task_id": True}],
    "roberta": [
        SIZES | {"pad_token_id": 1, "hidden_act": "gelu_new", "type_vocab_size": 1},
        SIZES | {"pad_token_id": 0, "type_vocab_size": 1},
        SIZES | {"pad_token_id": 5, "type_vocab_size": 2},
    ],
    "xlm-roberta": [SIZES | {"pad_token_id": 1, "type_vocab_size": 1}],
    "camembert": [SIZES | {"pad_token_id": 1, "type_vocab_size": 1}],
    "distilbert": [DISTIL, DISTIL | {"activation": "relu"}],
    "mpnet": [SIZES | {"relative_attention_num_buckets": 40, "pad_token_id": 1}],
    "electra": [SIZES | {"embedding_size": 16}, SIZES | {"embedding_size": 24, "hidden_act": "relu"}],
    "albert": [
        SIZES | {"embedding_size": 8, "num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
        SIZES | {"embedding_size": 24, "hidden_act": "gelu"},
    ],
}
KINDS["deberta-v2"] = [
    SIZES
    | {
        "relative_attention": True,
        "position_biased_input": False,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 6,
        "max_relative_positions": span,
        "type_vocab_size": 0,
        **more,
    }
    for span, more in ((-1, {}), (20, {"conv_kernel_size": 5, "conv_act": "tanh", "share_att_key": False}))
]
LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}}
KINDS["nomic_bert"] = [SIZES | {"head_dim": 8}, SIZES | LINEAR | {"head_dim": 8, "hidden_act": "gelu"}]
KINDS["gte"] = [
    SIZES | {"pad_token_id": 0, "type_vocab_size": 2},
    SIZES | LINEAR | {"pad_token_id": 1, "type_vocab_size": 2},
]
KINDS["jina_embeddings_v3"] = [SIZES | {"pad_token_id": 1}]
OF_AUTHORS = ("new",)  # a model type that transformers does not have
KINDS["big_bird"] = [SIZES | {"attention_type": kind} for kind in ("original_full", "block_sparse")]
THEIR_OWN = ("DebertaV2ForPreTraining",)  # DeBERTa's authors have that class, transformers has none
KINDS["modernbert"] = [
    SIZES
    | {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "num_hidden_layers": 5,
        "local_attention": 10,
        "classifier_pooling": pooling,
        "layer_types": layer_types,
    }
    for pooling, layer_types in (
        ("cls", None),
        ("mean", ["full_attention", "sliding_attention"] * 2 + ["full_attention"]),
    )
]
KINDS["modernbert"].append(KINDS["modernbert"][0] | {"hidden_activation": "silu"})
WITHOUT_SEGMENTS = (
    *("modernbert", "deberta-v2", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"),
    "jina_embeddings_v3",
)
NAMES = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "prediction_logits": "mlm_logits",
    "seq_relationship_logits": "nsp_logits",
    "sop_logits": "nsp_logits",
    "start_logits": "start_logits",
    "end_logits": "end_logits",
}


def run_torch(*arguments):
    script = os.path.join(os.path.dirname(__file__), "run_family.py")
    done = subprocess.run(
        [TORCH, script, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


MODELS = [
    (model_type, name, arguments | {"num_labels": 2 if name.endswith(("Answering", "PreTraining")) else 3})
    for model_type, kinds in KINDS.items()
    for arguments in kinds
    for name in member_of({"model_type": model_type}, "")[0].classes(model_type)
    if name not in THEIR_OWN
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Returns the folder of the models that PyTorch made, by their numbers."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "classes.json").write_text(
        json.dumps([[name, arguments, model_type not in WITHOUT_SEGMENTS] for model_type, name, arguments in MODELS])
    )
    run_torch("make", folder / "models", folder / "classes.json")
    return folder / "models"


def test_every_class_of_every_member_is_among_them():
    classes = {name for member in FAMILY for model_type in member.stems for name in member.classes(model_type)}
    classes -= {name for name in classes if name.startswith(("JinaBert", "New"))}
    assert {name for _, name, _ in MODELS} == classes - {*THEIR_OWN}


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize(
    ("model_type", "name", "number"), [(*model[:2], number) for number, model in enumerate(MODELS)]
)
def test_a_class_is_computed(models, model_type, name, number):
    compute(models / str(number), name)


@pytest.mark.slow
@needs_torch
def test_what_we_write_is_computed_the_same_by_transformers(models):
    for number in range(len(MODELS)):
        formats.write(formats.read(str(models / str(number))), "hugging_face", str(models / str(number) / "written"))
    differences = run_torch("compare", models)
    assert len(differences) == len(MODELS)
    assert [row for row in differences if row[2] > 1e-6] == []  # the same numbers in, the same out


def compute(place: pathlib.Path, name: str):
    stored, expected = formats.read(str(place)), np.load(place / "expected.npz")
    rows = {key.removeprefix("in."): expected[key].astype("int32") for key in expected.files if key.startswith("in.")}
    places = np.tile(np.arange(rows["input_ids"].shape[1]), (3, 1))
    found = formats.outputs(formats.make_model(stored), rows | {"masked_lm_positions": places})
    for key in expected.files:
        ours = NAMES.get(
            key.removeprefix("out."), "mlm_logits" if "mlm_logits" in found and key == "out.logits" else "logits"
        )
        if "NextSentence" in name and ours == "logits":
            ours = "nsp_logits"
        if not key.startswith("out.") or (ours == "mlm_logits" and "NextSentence" in name):
            continue
        got, value = found[ours], expected[key]
        if value.shape[:2] == rows["input_mask"].shape:
            got, value = got[rows["input_mask"] == 1], value[rows["input_mask"] == 1]
        np.testing.assert_allclose(
            got, value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=f"{name}, {place}: {key}"
        )
