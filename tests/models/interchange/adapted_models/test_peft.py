"""Adapters in PEFT's folders: read over a base, merged, written, and refused by name."""

import json
import os
import pathlib
import shutil
import subprocess
import time

import numpy as np
import pytest
from absl import flags
from commands import imported_tool
from needed_tools import TORCH, needs_torch
from safetensors.numpy import load_file, save_file

import official_bert
from official_bert.models.interchange import formats

FAMILY = pathlib.Path(__file__).parents[3] / "golden" / "family"
BERT, ROBERTA = FAMILY / "bert/BertForPreTraining", FAMILY / "roberta/RobertaForMaskedLM"
SPANS = FAMILY / "roberta/RobertaForQuestionAnswering"
MODERN, DEBERTA = FAMILY / "modernbert/ModernBertForMaskedLM", FAMILY / "deberta_v3/DebertaV2ForMaskedLM"
LAYER = "bert.encoder.layer.{}.attention.self."
RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.normal(size=shape).astype("float32")


def write_adapter(folder, base, modules, whole=(), **config):
    """Writes an adapter of `modules` {name in the task's class: rank}; returns the tensors of the merged model.

    `whole` are shapes of further tensors. The merged kernels come from PEFT's formulas, on the base's own file.
    """
    weights, prefix, written = load_file(base / "model.safetensors"), "base_model.model.", {}
    for module, rank in modules.items():
        own = next(name for name in (f"{module}.weight", f"bert.{module}.weight") if name in weights)
        units, width = weights[own].shape
        down, up = numbers(rank, width), numbers(units, rank)
        written |= {f"{prefix}{module}.lora_A.weight": down, f"{prefix}{module}.lora_B.weight": up}
        alpha = next(
            (value for pattern, value in config.get("alpha_pattern", {}).items() if module.endswith(f".{pattern}")),
            config.get("lora_alpha", 8),
        )
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
        if config.get("init_lora_weights") == "pissa":  # Meng et al. 2024, eq. 4: the base keeps the residual
            left, values, right = np.linalg.svd(weights[own])
            weights[own] = weights[own] - left[:, :rank] @ np.diag(values[:rank]) @ right[:rank]
        if config.get("init_lora_weights") == "olora":
            orthogonal, triangular = np.linalg.qr(weights[own])
            weights[own] = weights[own] - scale * orthogonal[:, :rank] @ triangular[:rank]
        weights[own] = weights[own] + scale * up @ down
        if config.get("use_dora"):
            magnitude = written[f"{prefix}{module}.lora_magnitude_vector"] = np.abs(numbers(units))
            weights[own] *= (magnitude / np.linalg.norm(weights[own], axis=1))[:, None]
        bias = own.replace(".weight", ".bias")
        if config.get("lora_bias"):
            added = written[f"{prefix}{module}.lora_B.bias"] = numbers(units)
            weights[bias] = weights[bias] + scale * added
        if config.get("bias") == "lora_only":
            weights[bias] = written[f"{prefix}{module}.base_layer.bias"] = numbers(units)
    for name, shape in dict(whole).items():
        weights[name] = written[f"{prefix}{name}"] = numbers(*shape)
    os.makedirs(folder)
    save_file(written, folder / "adapter_model.safetensors")
    values = {
        "peft_type": "LORA",
        "base_model_name_or_path": "owner/base",
        "r": 4,
        "lora_alpha": 8,
        "megatron_core": "megatron.core",
        "qalora_group_size": 16,
        "loftq_config": {},
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(values))
    return weights


def logits_of(stored):
    ids = np.arange(2, 14, dtype="int32").reshape(2, 6)
    outputs = formats.make_model(stored)({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": 0 * ids})
    if "start_logits" in outputs:
        return np.stack([outputs["start_logits"], outputs["end_logits"]])
    return np.asarray(outputs["logits"] if "logits" in outputs else outputs["sequence_output"])


def head_of(width, prefix="classifier."):
    return {f"{prefix}weight": (3, width), f"{prefix}bias": (3,)}


WIDTH = json.loads((BERT / "config.json").read_text())["hidden_size"]
MODERN_WIDTH = json.loads((MODERN / "config.json").read_text())["hidden_size"]
DENSE = {"classifier.dense.weight": (WIDTH, WIDTH), "classifier.dense.bias": (WIDTH,)}
CASES = {
    "lora": (
        BERT,
        "BertForSequenceClassification",
        {LAYER.format(0) + "query": 4, LAYER.format(1) + "value": 4},
        head_of(WIDTH),
        {"task_type": "SEQ_CLS", "modules_to_save": None},
    ),
    "patterns": (
        BERT,
        "BertForTokenClassification",
        {LAYER.format(0) + "query": 2, "bert.encoder.layer.1.output.dense": 3},
        head_of(WIDTH),
        {"task_type": "TOKEN_CLS", "use_rslora": True, "alpha_pattern": {"query": 5}},
    ),
    "dora": (
        BERT,
        "BertForSequenceClassification",
        {LAYER.format(0) + "key": 4},
        head_of(WIDTH),
        {"task_type": "SEQ_CLS", "use_dora": True, "bias": "lora_only"},
    ),
    "features": (
        BERT,
        "BertModel",
        {"encoder.layer.0.attention.output.dense": 4},
        {},
        {"task_type": "FEATURE_EXTRACTION", "lora_bias": True},
    ),
    "own pooler": (
        ROBERTA,
        "RobertaForSequenceClassification",
        {"roberta.encoder.layer.1.intermediate.dense": 1},
        {**DENSE, **head_of(WIDTH, "classifier.out_proj.")},
        {"task_type": "SEQ_CLS", "bias": "lora_only"},
    ),
    "head and bias": (
        BERT,
        "BertForSequenceClassification",
        {LAYER.format(0) + "query": 4},
        {
            **head_of(WIDTH),
            "bert.encoder.layer.0.attention.output.dense.bias": (WIDTH,),
            "bert.pooler.dense.bias": (WIDTH,),
        },
        {"task_type": "SEQ_CLS", "bias": "all", "modules_to_save": ["classifier"]},
    ),
    "pissa": (
        BERT,
        "BertForSequenceClassification",
        {LAYER.format(0) + "query": 4, "bert.encoder.layer.1.output.dense": 3},
        head_of(WIDTH),
        {"task_type": "SEQ_CLS", "init_lora_weights": "pissa"},
    ),
    "pissa of a head": (
        SPANS,
        "RobertaForQuestionAnswering",
        {"qa_outputs": 1, "roberta.encoder.layer.0.attention.self.query": 2},
        {},
        {"task_type": "QUESTION_ANS", "init_lora_weights": "pissa"},
    ),
    "olora": (
        MODERN,
        "ModernBertForSequenceClassification",
        {"model.layers.0.attn.Wqkv": 4, "model.layers.1.mlp.Wi": 2},
        head_of(MODERN_WIDTH),
        {"task_type": "SEQ_CLS", "init_lora_weights": "olora", "use_rslora": True},
    ),
    "fused": (
        MODERN,
        "ModernBertForSequenceClassification",
        {"model.layers.0.attn.Wqkv": 4, "model.layers.1.mlp.Wi": 2},
        head_of(MODERN_WIDTH),
        {"task_type": "SEQ_CLS"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_makes_of_its_base_what_the_formulas_say(case, tmp_path):
    base, architecture, modules, whole, config = CASES[case]
    merged = write_adapter(tmp_path / "adapter", base, modules, whole, **config)
    heads = () if architecture == "BertModel" else ("cls.", "lm_head.", "decoder.")
    (tmp_path / "merged").mkdir()
    save_file(
        {
            name: tensor
            for name, tensor in merged.items()
            if not (heads and name.startswith(heads))
            and not (architecture == "BertModel" and not name.startswith("bert."))
        },
        tmp_path / "merged/model.safetensors",
    )
    values = json.loads((base / "config.json").read_text()) | {"architectures": [architecture]}
    (tmp_path / "merged/config.json").write_text(json.dumps(values))
    stored = formats.read(str(tmp_path / "adapter"), base=str(base))
    wanted = logits_of(formats.read(str(tmp_path / "merged")))
    np.testing.assert_allclose(logits_of(stored), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    formats.write(stored, "peft", str(tmp_path / "again"))
    again = formats.read(str(tmp_path / "again"), base=str(base))
    for name, weight in stored.weights.items():
        np.testing.assert_allclose(again.weights[name], weight, atol=1e-5, err_msg=name)


def test_python_takes_a_folder_with_its_base(tmp_path):
    base, _, modules, whole, config = CASES["lora"]
    write_adapter(tmp_path / "adapter", base, modules, whole, **config)
    stored = formats.read(str(tmp_path / "adapter"), base=str(base))
    model = official_bert.load_model(tmp_path / "adapter", base=base)
    np.testing.assert_array_equal(model.classifier.output_weights, stored.weights["classifier/output_weights"])
    kernel = model.encoder.transformer_layers[0].attention.query.kernel
    np.testing.assert_array_equal(np.reshape(kernel, (WIDTH, WIDTH)), stored.weights["layer_0/attention/query/kernel"])
    with pytest.raises(ValueError, match="expected a PEFT folder, which has adapter_config.json, beside it"):
        official_bert.load_model(base, base=base)


def change_config(folder, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_tensors(folder, change):
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)


def add(folder, name, shape):
    change_tensors(folder, lambda tensors: tensors | {f"base_model.model.{name}": numbers(*shape)})


def twice(folder):
    """Writes a tensor of the base's class under the encoder's own name, too."""
    name = f"base_model.model.{LAYER.format(0)}query.lora_A.weight"
    change_tensors(folder, lambda tensors: tensors | {name.replace("model.bert.", "model."): tensors[name] + 1})


def cut_ranks(folder):
    change_tensors(
        folder,
        lambda tensors: {
            name: tensor[:0] if "lora_A" in name else tensor[:, :0] if "lora_B" in name else tensor
            for name, tensor in tensors.items()
        },
    )


def rename(folder, old, new):
    path = folder / "adapter_model.safetensors"
    save_file({name.replace(old, new): tensor for name, tensor in load_file(path).items()}, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: change_config(folder, peft_type="IA3"), "adapter_config.json: peft_type: 'IA3'"),
        (lambda folder: change_config(folder, layer_replication=[[0, 1]]), "layer_replication: .* expected none"),
        (lambda folder: change_config(folder, use_something_new=True), "use_something_new: True is not supported"),
        (lambda folder: change_config(folder, fan_in_fan_out=True), "fan_in_fan_out: True"),
        (lambda folder: change_config(folder, lora_alpha="8"), "lora_alpha: expected a number below 2\\^31, got '8'"),
        (lambda folder: change_config(folder, task_type="CAUSAL_LM"), "task_type: 'CAUSAL_LM' is not supported"),
        (lambda folder: rename(folder, "self.query.lora_B", "self.query.lora_C"), "lora_C.weight: not supported"),
        (
            lambda folder: rename(folder, "layer.0", "layer.7"),
            "layer.7.attention.self.query.lora_A: the base has no such",
        ),
        (lambda folder: rename(folder, "classifier", "score"), "score.bias: no weight of"),
        (lambda folder: change_config(folder, init_lora_weights="pissa_niter_4"), "init_lora_weights: 'pissa_niter_4'"),
        (
            lambda folder: change_config(folder, init_lora_weights="corda"),
            "init_lora_weights: 'corda' changes the base",
        ),
        (lambda folder: change_config(folder, r=0), "r: expected a rank from 1 to 1,048,576, got 0"),
        (lambda folder: change_config(folder, r=True), "r: expected a rank from 1 to 1,048,576, got True"),
        (lambda folder: change_config(folder, rank_pattern={"a": 1e9}), "a: expected a rank from 1"),
        (
            lambda folder: change_config(folder, lora_alpha=10**400),
            "lora_alpha: expected a number below 2\\^31, got 1000",
        ),
        (lambda folder: change_config(folder, lora_alpha=float("nan")), "lora_alpha: expected a number below 2"),
        (
            lambda folder: change_config(folder, alpha_pattern={"(": 4}),
            "alpha_pattern: expected a pattern of RE2, got '\\('",
        ),
        (lambda folder: change_config(folder, alpha_pattern={"(a)\\1": 4}), "expected a pattern of RE2"),
        (
            lambda folder: change_config(folder, alpha_pattern={f"m{index}": 4 for index in range(1001)}),
            "alpha_pattern: expected at most 1,000 patterns, got 1,001",
        ),
        (
            lambda folder: add(folder, LAYER.format(0) + "query.lora_magnitude_vector", (WIDTH, 1)),
            r"query: expected lora_magnitude_vector \[\d+\] for this base, got \[\d+, 1\]",
        ),
        (
            lambda folder: add(folder, LAYER.format(0) + "query.lora_B.bias", (1,)),
            r"query: expected lora_B.bias \[\d+\] for this base, got \[1\]",
        ),
        (
            lambda folder: add(folder, LAYER.format(0) + "query.base_layer.bias", (1,)),
            r"query.bias: expected the shape of the base's weight, \[\d+\], got \[1\]",
        ),
        (twice, r"query.lora_A.weight: another tensor has the same name"),
        (
            lambda folder: add(folder, "bert.embeddings.LayerNorm.lora_embedding_A", (2, WIDTH)),
            r"LayerNorm.lora_A: the base has no such product",
        ),
        (lambda folder: cut_ranks(folder), r"query: expected lora_A.weight \[r, .*\] .* got \[0, "),
        (lambda folder: rename(folder, "lora_A.weight", "lora_A"), "lora_A: not supported"),
        (
            lambda folder: os.remove(folder / "adapter_model.safetensors"),
            "expected adapter_model.safetensors or adapter",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(change, message, tmp_path):
    base, _, modules, whole, config = CASES["lora"]
    write_adapter(tmp_path / "adapter", base, modules, whole, **config)
    change(tmp_path / "adapter")
    with pytest.raises(ValueError, match=message) as error:
        formats.read(str(tmp_path / "adapter"), base=str(base))
    assert "\n" not in str(error.value)


def test_a_slow_pattern_is_matched_in_linear_time(tmp_path):
    base, _, modules, whole, config = CASES["lora"]
    write_adapter(tmp_path / "adapter", base, modules, whole, **config, alpha_pattern={"(([a-z.0-9_]+)+)+!": 4})
    began = time.monotonic()
    stored = formats.read(str(tmp_path / "adapter"), base=str(base))
    assert time.monotonic() - began < 5 and {product.scale for product in stored.adapters.products.values()} == {2.0}


def test_what_an_adapter_names_as_its_base_is_opened_without_another_and_after_a_warning(tmp_path, caplog):
    base, _, modules, whole, config = CASES["lora"]
    path, named = str(tmp_path / "adapter"), tmp_path / "named"
    named.mkdir()
    os.mkfifo(named / "config.json")  # a reader would wait for ever
    write_adapter(tmp_path / "adapter", base, modules, whole, **config, base_model_name_or_path=str(named))
    wanted = formats.read(path, base=str(base))
    assert wanted.head == "classifier" and "opens the base" not in caplog.text
    with pytest.raises(ValueError, match=r"named/config.json: expected a file, .*, got a pipe"):
        formats.read(path)
    assert f"opens the base named in adapter_config.json: {named}" in caplog.text
    shutil.rmtree(named)
    shutil.copytree(base, named)
    for name, weight in formats.read(path).weights.items():
        np.testing.assert_array_equal(weight, wanted.weights[name])
    values = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    for name, told in (
        (path, "got .*adapter, a PEFT folder"),
        ("s3://a/b", "names 's3"),
        (3, "names 3"),
        ("", "names ''"),
    ):
        (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(values | {"base_model_name_or_path": name}))
        with pytest.raises(ValueError, match=rf"adapter: expected .*{told}"):
            formats.read(path)


def test_a_named_base_in_the_cache_of_the_hub_is_opened_without_a_network_or_a_word(tmp_path, monkeypatch, caplog):
    base, _, modules, whole, config = CASES["lora"]
    snapshot = tmp_path / "models--owner--base/snapshots/0123"
    shutil.copytree(base, snapshot)
    (tmp_path / "models--owner--base/refs").mkdir()
    (tmp_path / "models--owner--base/refs/main").write_text("0123")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    write_adapter(tmp_path / "adapter", base, modules, whole, **config)  # it names owner/base
    assert formats.read(str(tmp_path / "adapter")).origin.endswith(f"{snapshot} (BertForPreTraining)")
    assert "opens the base" not in caplog.text


def test_products_of_a_head_are_merged(tmp_path):
    weights, modules = (
        load_file(BERT / "model.safetensors"),
        ["cls.predictions.transform.dense", LAYER.format(0) + "key"],
    )
    merged = write_adapter(tmp_path / "adapter", BERT, dict.fromkeys(modules, 2))
    stored = formats.read(str(tmp_path / "adapter"), base=str(BERT))
    np.testing.assert_allclose(
        stored.weights["masked_lm/transform/kernel"], merged[f"{modules[0]}.weight"].T, rtol=1e-5, atol=1e-6
    )
    assert np.abs(weights[f"{modules[0]}.weight"] - merged[f"{modules[0]}.weight"]).max() > 0.1
    assert [*stored.adapters.products] == ["layer_0/attention/key"]
    # the last product of a head
    change_config(tmp_path / "adapter", task_type="TOKEN_CLS")
    change_tensors(tmp_path / "adapter", lambda tensors: {n: t for n, t in tensors.items() if "cls." not in n})
    whole, down, up = numbers(3, WIDTH), numbers(2, WIDTH), numbers(3, 2)
    names = ("classifier.weight", "classifier.lora_A.weight", "classifier.lora_B.weight", "classifier.bias")
    change_tensors(
        tmp_path / "adapter",
        lambda tensors: tensors | {f"base_model.model.{n}": t for n, t in zip(names, (whole, down, up, numbers(3)))},
    )
    read = formats.read(str(tmp_path / "adapter"), base=str(BERT))
    np.testing.assert_allclose(read.weights["tagger/output_weights"], whole + 4 * up @ down, rtol=1e-5, atol=1e-5)


def test_a_pooler_that_no_file_has_is_named(tmp_path):
    module = "deberta.encoder.layer.0.attention.self.query_proj"
    write_adapter(tmp_path / "adapter", DEBERTA, {module: 2}, head_of(WIDTH), task_type="SEQ_CLS")
    with pytest.raises(ValueError, match=r"pooler.dense.weight is neither in the base, .*, nor in the adapter"):
        formats.read(str(tmp_path / "adapter"), base=str(DEBERTA))


def test_an_adapter_of_another_size_is_refused(tmp_path):
    write_adapter(tmp_path / "adapter", BERT, {LAYER.format(0) + "query": 4}, head_of(WIDTH), task_type="SEQ_CLS")
    path = tmp_path / "adapter/adapter_model.safetensors"
    save_file({name: np.repeat(tensor, 2, axis=-1) for name, tensor in load_file(path).items()}, path)
    with pytest.raises(ValueError, match=r"query: expected lora_A.weight \[r, .*\] and lora_B.weight .* for this base"):
        formats.read(str(tmp_path / "adapter"), base=str(BERT))


@pytest.mark.slow
def test_convert_checkpoint_merges_adapters_or_keeps_them_as_it_is_asked(tmp_path):
    base, _, modules, whole, config = CASES["lora"]
    write_adapter(tmp_path / "adapter", base, modules, whole, **config)
    with imported_tool("convert_checkpoint") as tool:

        def convert(to, **more):
            flags.FLAGS.unparse_flags()
            for name in tool.own_flags:
                flags.FLAGS[name].unparse()
            values = {"input": tmp_path / "adapter", "to": to, "output": tmp_path / f"as_{to}", **more}
            flags.FLAGS(["convert_checkpoint.py", *(f"--{name}={value}" for name, value in values.items())])
            tool.main([])

        convert("hugging_face", base=base, merge_adapters=True)
        convert("peft", base=base)
        with pytest.raises(ValueError, match=r"--to=ours: .*adapter has adapters for a base: --merge_adapters writes"):
            convert("ours", base=base)
        with pytest.raises(ValueError, match="--merge_adapters: expected another format with it, got --to=peft"):
            convert("peft", base=base, merge_adapters=True, output=tmp_path / "again")
    wanted = logits_of(formats.read(str(tmp_path / "adapter"), base=str(base)))
    for found in (
        formats.read(str(tmp_path / "as_hugging_face")),
        formats.read(str(tmp_path / "as_peft"), base=str(base)),
    ):
        np.testing.assert_allclose(logits_of(found), wanted, atol=1e-5)
    assert not (tmp_path / "as_ours").exists() and not (tmp_path / "again").exists()


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_peft_reads_what_we_write_with_the_same_logits(case, tmp_path):
    base, architecture, modules, whole, config = CASES[case]
    write_adapter(tmp_path / "adapter", base, modules, whole, **config)
    stored = formats.read(str(tmp_path / "adapter"), base=str(base))
    formats.write(stored, "peft", str(tmp_path / "written"))
    shutil.copytree(base, tmp_path / "base")
    done = subprocess.run(
        [
            TORCH,
            str(pathlib.Path(__file__).with_name("run_peft.py")),
            str(tmp_path / "base"),
            architecture,
            str(tmp_path / "written"),
            str(tmp_path / "out.npy"),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = np.load(tmp_path / "out.npy")
    np.testing.assert_allclose(logits_of(stored), wanted, atol=1e-4 * np.abs(wanted).max())
