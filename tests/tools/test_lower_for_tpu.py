import collections
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml
from needed_tools import TPU, need

from official_bert.config import load_config
from official_bert.models.interchange import formats
from official_bert.tasks.loading import load_task

FAMILY = pathlib.Path(__file__).parents[1] / "golden" / "family"


def lower(root, *arguments, config="pretrain/tiny.yaml"):
    # TPU_PYTHON: of an environment with another version of tensorflow-tpu (`make venv-tpu TPU_VERSION=...`).
    python = sys.executable if "--platform=CPU" in arguments else os.environ.get("TPU_PYTHON", TPU)
    if python == TPU:
        need(TPU)
    return subprocess.run(
        [
            python,
            str(root / "tools/lower_for_tpu.py"),
            f"--config={root}/configs/{config}",
            "--set=training.batch_size=8",
            *arguments,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=1800,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("--set=training.accumulation_steps=2", "--set=training.precision=bfloat16"),
        ("--set=training.recompute=true", "--set=optimizer.name=lamb"),
        ("--set=optimizer={name: stable_adamw, schedule: warmup_stable_decay, decay_steps: 9}",),
        ("--set=training.recompute=attention",),
        ("--set=options.objective=replaced_tokens",),
        ("--set=options.boundary_weight=1.0",),
        ("--set=options.objective=masked_diffusion", "--set=options.sentence_task=none"),
        (
            "--set=options={objective: replaced_tokens, embedding_sharing: disentangled, adds_first: true}",
            "--set=training.accumulation_steps=2",
        ),
    ],
)
def test_the_whole_pretraining_step_lowers_to_tpu_hlo(root, tmp_path, overrides):
    done = lower(root, f"--hlo_file={tmp_path}/step.hlo", *overrides)
    assert done.returncode == 0, done.stderr
    assert re.search(r"pretraining train step: [\d,]+ bytes of HLO, [\d,]+ operations", done.stdout)
    assert "pretraining evaluation step: " in done.stdout
    hlo = (tmp_path / "step.hlo").read_text()
    # The step is whole: products of forward and backward, square roots of the update, random bits of dropout.
    assert hlo.count(" dot(") > 30 and " sqrt(" in hlo and ("rng-bit-generator(" in hlo or " shift-left(" in hlo)
    assert "parameter_replication" in hlo and "<=" not in hlo


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [8, 32])
def test_the_gradients_of_several_hosts_are_summed_over_all_their_cores(root, tmp_path, replicas):
    done = lower(
        root,
        f"--hlo_file={tmp_path}/step.hlo",
        f"--replicas={replicas}",
        "--set=training.batch_size=64",
        "--set=training.accumulation_steps=2",
    )
    assert done.returncode == 0, done.stderr
    sums = re.findall(
        r"= f32\[([\d,]*)\]\S* all-reduce\(.*replica_groups=\{\{([\d,]+)\}\}",
        hlo := (tmp_path / "step.hlo").read_text(),
    )
    assert {group for _, group in sums} == {",".join(map(str, range(replicas)))} and len(sums) == hlo.count(
        " all-reduce("
    )
    model = load_task(load_config(str(root / "configs/pretrain/tiny.yaml"))).build_model()
    gradients = collections.Counter(",".join(map(str, weight.shape)) for weight in model.trainable_variables)
    assert not gradients - collections.Counter(shape for shape, _ in sums)  # each once, after both micro-batches


@pytest.mark.slow
def test_a_batch_that_the_replicas_cannot_share_is_refused(root):
    done = lower(root, "--replicas=3")
    assert done.returncode == 1
    assert (
        "config.training.batch_size: expected a multiple of 3 replicas times 1 accumulation steps = 3, got 8"
        in done.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(path.name for path in FAMILY.iterdir() if path.is_dir()))
def test_the_pretraining_step_of_every_relative_lowers_to_tpu_hlo(root, tmp_path, kind):
    config = formats.read(str(next(path for path in (FAMILY / kind).iterdir() if path.is_dir()))).config
    (tmp_path / "model.yaml").write_text(
        yaml.safe_dump(
            {
                "base": f"{root}/configs/pretrain/tiny.yaml",
                "model": dataclasses.asdict(config),
                "options": {"max_seq_length": 32},
            }
        )
    )
    done = lower(root, f"--hlo_file={tmp_path}/step.hlo", f"--config={tmp_path}/model.yaml")
    assert done.returncode == 0, done.stderr
    assert "pretraining evaluation step: " in done.stdout and (tmp_path / "step.hlo").read_text().count(" dot(") > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("classification", ["options.labels=[a,b]"]),
        ("classification", ["options.kind=multi_label", "options.labels=[a,b,c]", "training.accumulation_steps=2"]),
        ("glue", ["options.dataset=stsb", "training.precision=bfloat16"]),
        ("squad", []),
        ("swag", []),
        ("retrieval", ["options.group_size=4", "training.accumulation_steps=2"]),
        ("retrieval", ["options.group_size=4", "options.texts_at_once=2"]),
        ("splade", ["options.group_size=4", "training.accumulation_steps=2"]),
        ("reranking", ["options.most_negatives=3", "training.accumulation_steps=2"]),
        ("ner", ["options.labels=[O,B-X,I-X]", "options.doc_stride=16"]),
        ("ner", ["options.labels=[O,B-X,I-X]", "options.doc_stride=16", "options.crf=true"]),
        ("text_to_text", []),
        (
            "text_to_text",
            ["options.generator=decoder", "options.answer_length=8", "options.label_smoothing=0.1"],
        ),
    ],
)
def test_the_whole_step_of_every_fine_tuning_lowers_to_tpu_hlo(root, golden, tmp_path, task, options):
    settings = [
        f"task={task}",
        f"tokenizer.vocab_file={golden}/vocab_uncased.txt",
        "options.max_seq_length=64",
        *options,
    ]
    done = lower(
        root, f"--hlo_file={tmp_path}/step.hlo", *(f"--set={text}" for text in settings), config="model/tiny.yaml"
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"{task} train step: [\d,]+ bytes of HLO, [\d,]+ operations", done.stdout)
    assert re.search(rf"{task} evaluation step: [\d,]+ bytes of HLO, [\d,]+ operations", done.stdout)
    hlo = (tmp_path / "step.hlo").read_text()
    assert hlo.count(" dot(") > 30 and " sqrt(" in hlo and ("rng-bit-generator(" in hlo or " shift-left(" in hlo)


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["TPU", "CPU"])
def test_the_step_of_a_student_lowers_with_its_teacher(root, golden, tmp_path, platform):
    teacher = str(golden / "tf1_bert")
    model = yaml.safe_load((golden / "tf1_bert/bert_config.json").read_text())
    settings = {
        "model": {key: model[key] for key in ("vocab_size", "type_vocab_size", "max_position_embeddings")},
        "training": {"teacher": teacher, "distillation": {"relations": 1.0, "relation_heads": 2}},
        "options": {"max_seq_length": 24, "max_predictions_per_seq": 5},
    }
    done = lower(
        root, f"--platform={platform}", *(f"--set={key}={json.dumps(value)}" for key, value in settings.items())
    )
    assert done.returncode == 0, done.stderr
    assert "pretraining train step: " in done.stdout


@pytest.mark.slow
def test_a_platform_that_is_not_there_is_told(root):
    done = lower(root, "--platform=TPV")
    assert done.returncode == 1 and "error: cannot be lowered for TPV" in done.stderr and "Traceback" not in done.stderr
