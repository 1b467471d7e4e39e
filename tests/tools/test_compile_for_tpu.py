"""Train steps compiled by Google's TPU compiler, and the same programs computed on a CPU."""

import dataclasses
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import tensorflow as tf
import yaml
from commands import imported_tool, run_here
from needed_tools import TPU, TPU_COMPILER, need

from official_bert.config import load_config
from official_bert.models.interchange import formats
from official_bert.tasks.loading import load_task
from official_bert.training.step import State
from official_bert.training.trainer import Trainer
from tools import tpu_compiler

TOOLS = pathlib.Path(__file__).parents[2] / "tools"
FAMILY = pathlib.Path(__file__).parents[1] / "golden" / "family"
SMALL = ("model.num_hidden_layers=1", "options.max_seq_length=16", "training.batch_size=32")
PRETRAINING = ("options.max_predictions_per_seq=4",)
TASKS = [
    ("classification", "options.labels=[a,b]"),
    ("classification", "options.kind=multi_label", "options.labels=[a,b,c]", "training.accumulation_steps=2"),
    ("glue", "options.dataset=stsb", "training.precision=bfloat16"),
    ("squad", "options.max_query_length=6", "options.doc_stride=4"),
    ("swag",),
    ("retrieval", "options.group_size=4", "training.accumulation_steps=2"),
    ("retrieval", "options.group_size=4", "options.texts_at_once=2"),
    ("splade", "options.group_size=4", "training.accumulation_steps=2"),
    ("reranking", "options.most_negatives=3", "training.accumulation_steps=2"),
    ("ner", "options.labels=[O,B-X,I-X]", "options.doc_stride=4"),
    ("ner", "options.labels=[O,B-X,I-X]", "options.doc_stride=4", "options.crf=true"),
    ("text_to_text", "options.answer_length=4", "training.accumulation_steps=2"),
    ("text_to_text", "options.generator=decoder", "options.answer_length=4", "options.shared=true"),
]


@pytest.fixture(scope="module")
def tool():
    with imported_tool("compile_for_tpu") as module:
        yield module


def test_the_largest_batch_is_that_of_a_line_through_two_small_ones(tool):
    # 100 bytes and 10 a row: 1,000 bytes hold 90 rows, of which 88 are a multiple of 8
    assert tool.largest_rows(1000, {8: 180, 16: 260}) == 88
    assert tool.largest_rows(200, {8: 180, 16: 260}) == 8  # at least what was compiled


def test_a_batch_that_the_line_promised_in_vain_is_made_smaller(tool, capsys):
    compiled, most = [], 72

    def compile_rows(rows):
        compiled.append(rows)
        if rows > most:
            raise tool.TooLargeError("the step needs 1.1K of a core's 1.0K of memory")
        return {"rows": rows, "memory": {"together": 100 + 10 * rows}}

    assert [report["rows"] for report in tool.find_largest(1000, compile_rows)] == [8, 16, 72]
    assert compiled == [8, 16, 88, 80, 72] and "80 rows: the step needs 1.1K" in capsys.readouterr().out
    # memory for 8 rows, not for 16
    compiled.clear()
    most = 8
    assert [report["rows"] for report in tool.find_largest(180, compile_rows)] == [8]
    assert compiled == [8, 16] and "16 rows: the step needs" in capsys.readouterr().out
    most = 0
    with pytest.raises(tool.TooLargeError):
        tool.find_largest(180, compile_rows)


def test_a_roofline_is_worked_out_by_hand(tool):
    facts = {"flop": 197e12, "bytes": 819e9 / 2, "all_reduces": [10e9, 10e9]}
    rates = yaml.safe_load((TOOLS / "tpu_chips.yaml").read_text())["v5e"]
    del rates["topologies"]
    # Each of 4 chips sends 3/4 of 20 GB to sum parts and again 3/4 to give them back, at 200 GB/s.
    assert tool.Slice("v5e:2x2", 4, **rates).roofline(facts) == {
        "products": 1.0,
        "memory": 0.5,
        "all_reduces": pytest.approx(0.15),
    }
    assert tool.Slice("v5e:1x1", 1, **rates).roofline(facts)["all_reduces"] == 0


def test_the_bytes_of_all_reduces_are_read_from_the_compiled_text():
    text = """
  %a.1 = (f32[30522,128]{1,0:T(8,128)S(1)}, /*index=1*/bf16[2]{0}, pred[3]{0}) all-reduce(%x, %y), to_apply=%sum
  %b = f32[]{:T(128)} all-reduce-start(%z), replica_groups={{0,1}}
  %c = f32[8]{0} add(%all-reduce.1, %z), metadata={op_name="all-reduce(f32[9])"}
"""
    assert tpu_compiler.reduced_bytes(text) == [4 * 30522 * 128 + 4 + 3, 4]


def test_the_pins_are_the_versions_that_the_compiler_checks():
    groups = tomllib.loads((TOOLS.parent / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    pins = [pin.split("==") for pin in groups["tpu-compiler"]]
    assert dict(pins) == tpu_compiler.VERSIONS


@pytest.mark.parametrize(
    ("topology", "told"),
    [
        ("v9:2x2", "--topology: expected a chip and a shape such as v5e:2x4, got 'v9:2x2'; known: v4:2x2x1 2x2x2 "),
        ("v5e:3x7", "v5e:1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16, v5p:2x2x1"),
        ("v5e", "got 'v5e'"),
        ("", "got ''"),
    ],
)
def test_an_unknown_topology_is_told_with_the_known_ones(root, topology, told):
    done = run_here("tools/compile_for_tpu.py", f"--config={root}/configs/pretrain/tiny.yaml", f"--topology={topology}")
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr


def test_another_machine_is_told(tool, monkeypatch):
    monkeypatch.setattr(tool.platform, "machine", lambda: "aarch64")
    with pytest.raises(ValueError, match="exists only for Linux x86_64, this is Linux aarch64"):
        tool.slice_of("v5e:2x2")


def test_a_missing_environment_is_told_with_its_command(tool, tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "TOOLS", tmp_path / "tools")
    with pytest.raises(ValueError, match=r"/\.venv-tpu-compiler/bin/python: not found; make venv-tpu-compiler"):
        tool.python_of(tool.COMPILER)


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 18.63G "
            "of 15.75G hbm. Exceeded hbm capacity by 2.88G.\n\nTotal hbm usage",
            "TooLargeError",
            "the step needs 18.63G of a core's 15.75G of memory",
        ),
        ("INVALID_ARGUMENT: no such op", "ValueError", "the TPU compiler: INVALID_ARGUMENT: no such op"),
    ],
)
def test_the_compilers_reasons_become_one_line(tool, monkeypatch, said, kind, told):
    monkeypatch.setattr(tool, "python_of", str)
    monkeypatch.setattr(
        tool.subprocess,
        "run",
        lambda arguments, **_: subprocess.CompletedProcess(
            arguments, 0, f"a line of a library\n{json.dumps({'error': said})}\n", ""
        ),
    )
    with pytest.raises(ValueError, match=re.escape(told)) as error:
        tool.ask_compiler("v5e:2x2")
    assert type(error.value).__name__ == kind


def test_other_versions_than_the_pinned_ones_are_named(monkeypatch):
    there = {"jax": "0.7.1", "jaxlib": "0.8.0", "libtpu": "0.0.20"}
    monkeypatch.setattr(tpu_compiler.importlib.util, "find_spec", lambda name: name != "libtpu" or None)
    monkeypatch.setattr(tpu_compiler.importlib.metadata, "version", there.get)
    assert tpu_compiler.other_versions() == "jaxlib 0.8.0 (expected 0.7.1), libtpu none (expected 0.0.20)"


def run_tool(config, *arguments):
    return subprocess.run(
        [sys.executable, str(TOOLS / "compile_for_tpu.py"), f"--config={config}", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=3600,
    )


def compiled(tmp_path, config, *settings, topology="v5e:2x2"):
    """Returns the report and the text of a compiled step."""
    need(TPU)
    need(TPU_COMPILER)
    done = run_tool(
        config,
        f"--topology={topology}",
        f"--report_file={tmp_path}/report.json",
        f"--compiled_file={tmp_path}/compiled.hlo",
        *(f"--set={setting}" for setting in settings),
    )
    assert done.returncode == 0, done.stderr
    assert " fits\n" in done.stdout
    return json.loads((tmp_path / "report.json").read_text()), (tmp_path / "compiled.hlo").read_text()


def check_compiled(report, text, model, rows=32):
    """Checks a step of 4 cores: gradients summed over all, weights and moments in place, the work of the products."""
    sizes = [math.prod(weight.shape) for weight in model.trainable_variables]
    assert set(re.findall(r" all-reduce(?:-start)?\(.*?replica_groups=\{\{([\d,]+)\}\}", text)) == {"0,1,2,3"}
    # Each gradient is a sum over the cores, and little else is; an objective may leave the pooler without a gradient.
    learned = sum(math.prod(weight.shape) for weight in model.trainable_variables if "/pooler/" not in weight.path)
    assert 4 * learned <= sum(report["all_reduces"]) < 4.2 * sum(sizes) + 4096
    memory = report["memory"]
    # float32 weights and two moments, padded to tiles, take the place of the old ones: only the metrics are new
    assert memory["aliased"] >= 12 * sum(sizes)
    assert memory["outputs"] - memory["aliased"] < 8192 and report["fits"]
    assert report["slice"]["bf16"] == 197e12 and report["batch_size"] == rows and report["flop"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("training.accumulation_steps=2", "training.precision=bfloat16"),
        ("training.recompute=true", "optimizer.name=lamb"),
        ("optimizer={name: stable_adamw, schedule: warmup_stable_decay, decay_steps: 9}",),
        ("training.recompute=attention",),
        ("options.objective=replaced_tokens",),
        ("options.boundary_weight=1.0",),
        ("options.objective=masked_diffusion", "options.sentence_task=none"),
        (
            "options={objective: replaced_tokens, embedding_sharing: disentangled, adds_first: true, max_seq_length: "
            "16}",
            "training.accumulation_steps=2",
        ),
    ],
)
def test_the_pretraining_step_of_every_objective_compiles(root, tmp_path, settings):
    config = str(root / "configs/pretrain/tiny.yaml")
    overrides = [*SMALL, *PRETRAINING, *settings]
    report, text = compiled(tmp_path, config, *overrides)
    check_compiled(report, text, load_task(load_config(config, overrides=overrides)).build_model())


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(path.name for path in FAMILY.iterdir() if path.is_dir()))
def test_the_pretraining_step_of_every_relative_compiles(root, tmp_path, kind):
    model = formats.read(str(next(path for path in (FAMILY / kind).iterdir() if path.is_dir()))).config
    (tmp_path / "model.yaml").write_text(
        yaml.safe_dump({"base": f"{root}/configs/pretrain/tiny.yaml", "model": dataclasses.asdict(model)})
    )
    layers = f"model.num_hidden_layers={2 if model.convolution else 1}"  # a convolution needs two
    settings = [*SMALL, *PRETRAINING, layers]
    report, text = compiled(tmp_path, tmp_path / "model.yaml", *settings)
    task = load_task(load_config(str(tmp_path / "model.yaml"), overrides=settings))
    check_compiled(report, text, task.build_model())


@pytest.mark.slow
@pytest.mark.parametrize("settings", TASKS, ids="-".join)
def test_the_step_of_every_fine_tuning_compiles(root, golden, tmp_path, settings):
    config = str(root / "configs/model/tiny.yaml")
    task, *options = settings
    overrides = [f"task={task}", f"tokenizer.vocab_file={golden}/vocab_uncased.txt", *SMALL, *options]
    report, text = compiled(tmp_path, config, *overrides)
    check_compiled(report, text, load_task(load_config(config, overrides=overrides)).build_model())


TOO_LARGE = """HloModule large, entry_computation_layout={(f32[5000000000]{0})->(f32[5000000000]{0}, f32[])}

ENTRY main {
  given = f32[5000000000]{0} parameter(0)
  zero = f32[] constant(0)
  new = f32[5000000000]{0} negate(given)
  ROOT results = (f32[5000000000]{0}, f32[]) tuple(new, zero)
}
"""
WRITE_PROTO = """
import sys
from jaxlib import _jax
open(sys.argv[2], "wb").write(_jax.hlo_module_from_text(sys.argv[1]).as_serialized_hlo_module_proto())
"""


@pytest.mark.slow
def test_a_program_that_is_too_large_is_told_in_one_line(tool, tmp_path):
    need(TPU_COMPILER)
    subprocess.run([TPU_COMPILER, "-c", WRITE_PROTO, TOO_LARGE, str(tmp_path / "large.pb")], check=True)
    # 5e9 numbers of 4 bytes are 18.63 GiB
    with pytest.raises(tool.TooLargeError, match=r"^the step needs 18\.63G of a core's 15\.75G of memory$"):
        tool.ask_compiler("v5e:2x2", str(tmp_path / "large.pb"), str(tmp_path / "compiled.hlo"))


def made_batch(spec, rng, vocab_size):
    """Returns a batch of rows of different lengths."""
    batch = {}
    for name, (_, *shape) in {name: (None, *part.shape) for name, part in spec.items()}.items():
        if name == "input_mask":
            batch[name] = np.arange(shape[1]) < rng.integers(shape[1] // 2, shape[1] + 1, (shape[0], 1))
        elif name == "masked_lm_positions":
            batch[name] = np.sort(np.argsort(rng.random((shape[0], 30)))[:, : shape[1]] + 1)
        else:
            most = {"input_ids": vocab_size, "masked_lm_ids": vocab_size, "sample_keys": 2**31 - 1}.get(name, 2)
            batch[name] = np.ones(shape) if name == "example_weights" else rng.integers(0, most, shape)
    return {name: tf.constant(batch[name].astype(spec[name].dtype.as_numpy_dtype)) for name in spec}


STEPS = 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ("pretrain/tiny.yaml", ()),
        ("pretrain/tiny.yaml", ("options.objective=replaced_tokens",)),
        ("model/tiny.yaml", ("task=classification", "options.labels=[a,b]", "options.dropout=0.0")),
    ],
)
def test_the_program_computes_what_tensorflow_computes(root, golden, tmp_path, capsys, config, settings):
    need(TPU)
    need(TPU_COMPILER)
    # Without dropout and clipping, whose factor would be in the first moments.
    overrides = [
        f"tokenizer.vocab_file={golden}/vocab_uncased.txt",
        "model.vocab_size=3000",
        "options.max_seq_length=64",
        "model.hidden_dropout_prob=0.0",
        "model.attention_probs_dropout_prob=0.0",
        "training.batch_size=8",
        f"training.steps={STEPS}",
        "optimizer={learning_rate: 0.0001, warmup_steps: 4, clip_norm: 1.0e+9}",
        *settings,
    ]
    path = f"{root}/configs/{config}"
    subprocess.run(
        [
            TPU,
            str(TOOLS / "lower_for_tpu.py"),
            f"--config={path}",
            f"--proto_file={tmp_path}/step.pb",
            *(f"--set={override}" for override in overrides),
        ],
        check=True,
        capture_output=True,
    )

    tf.keras.utils.set_random_seed(1)
    task = load_task(load_config(path, overrides=overrides))
    trainer = Trainer(task.recipe(task.build_model()), tf.distribute.get_strategy(), STEPS)
    rng = np.random.default_rng(0)
    batches = [made_batch(task.data.batch_spec(8), rng, 3000) for _ in range(STEPS)]
    state = [*trainer.weights, *trainer.first, *trainer.second, trainer.scale, trainer.finite_steps]
    given = {f"state_{number}": np.array(variable) for number, variable in enumerate(state)}
    for step, batch in enumerate(batches):
        arguments = [*tf.nest.flatten(batch), np.int64(step), np.int32(0)]
        given |= {f"step_{step}_{number}": np.array(argument) for number, argument in enumerate(arguments)}
    np.savez(tmp_path / "given.npz", **given)
    subprocess.run(
        [
            TPU_COMPILER,
            str(root / "tests/oracles/hlo_on_cpu.py"),
            str(tmp_path / "step.pb"),
            str(tmp_path / "given.npz"),
            str(tmp_path / "results.npz"),
        ],
        check=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"},
    )
    results = np.load(tmp_path / "results.npz")

    weights = [tf.convert_to_tensor(weight) for weight in trainer.weights]
    zeros = [tf.zeros_like(weight) for weight in weights]
    first = State(weights, zeros, zeros, tf.constant(1.0), tf.constant(0))
    gradients = trainer.step.prepare(first, batches[0], tf.constant(0, tf.int64), tf.constant(0), list)[0]
    moments = [results[f"state_{len(weights) + number}"] for number in range(len(weights))]
    parts = {
        weight.path: (10.0 * moment, gradient.numpy())
        for weight, moment, gradient in zip(trainer.model.trainable_variables, moments, gradients)
    }
    iterator = iter(tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=task.data.batch_spec(8)))
    rows = trainer.run_steps(iterator, tf.constant(STEPS)).numpy()
    losses, ours = rows[:, 0], results["rows"][:, 0]
    # A softmax ignores what its keys' bias adds, so that the exact gradient is 0 and the computed one is rounding.
    noise = [np.linalg.norm(parts.pop(path)) for path in [*parts] if path.endswith("/key/bias")]
    # (a weight that an objective does not read has the gradient 0 in both)
    apart = {path: np.linalg.norm(one - other) / (np.linalg.norm(other) or 1.0) for path, (one, other) in parts.items()}
    with capsys.disabled():
        print(
            f"\n{config} {settings}: gradients {max(apart.values()):.1e}, losses "
            f"{np.max(np.abs(ours / losses - 1)):.1e}, {losses[0]:.4f} to {losses[-1]:.4f}"
        )
    assert losses.std() > 1e-3 and len(apart) > 20 and max(noise) < 1e-9
    assert not {path: value for path, value in apart.items() if not value <= 1e-6}
    np.testing.assert_allclose(ours, losses, rtol=1e-5)
