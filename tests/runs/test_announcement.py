"""What a run says about itself at its start."""

import dataclasses
import json

import keras
import pytest
import tensorflow as tf
from made_finetuning import make_config as make_finetuning
from made_finetuning import resolve
from made_pretraining import make_config

from official_bert.config import Config, OptimizerConfig, build, load_config
from official_bert.runs.beginning import announcement
from official_bert.tasks.data import Resolved, Steps
from official_bert.tasks.loading import load_task
from official_bert.training.machines import distribution
from official_bert.training.machines.cluster import Placement
from official_bert.training.machines.distribution import make_strategy
from official_bert.training.trainer import Trainer


def test_devices_precision_parameters_and_memory_are_said():
    config = make_config(training={"batch_size": 8, "accumulation_steps": 2})
    task = load_task(config)
    trainer = Trainer(task.recipe(task.build_model()), make_strategy(Placement()), 1)
    # Tables (40 + 16 + 2) x 16 and 2 x 16 of LayerNorm; a layer of 4 x (16 x 16 + 16), 2 x 16 x 32 + 32 + 16 and 4 x
    # 16; the pooler; the words' head 16 x 16 + 3 x 16 + 40, the sentences' 2 x 16 + 2.
    count = 58 * 16 + 32 + 4 * 272 + 1024 + 48 + 64 + 272 + 256 + 48 + 40 + 34
    first, second = announcement.announce(trainer, config)
    assert first == (
        f"runs on 1 x CPU; 1 replica, each 4 rows of 16 tokens at once; float32; {count:,} trained parameters"
    )
    # 4 rows of 16 tokens, each 11 x 16 + 2 x 32 + 2 x 2 x 16 numbers, and 4 x 3 x 40 logits twice.
    assert announcement.activation_bytes(config, 4, 16) == 64 * 304 * 4 + 480 * 8
    # A quarter of that again, and the gradient of a table of 40 x 16.
    assert second == (
        f"about {(16 * count + 81664 + 20416 + 2560) / 1000:.1f} KB of memory a replica: weights {count / 250:.1f} "
        f"KB, moments {count / 125:.1f} KB, gradients {count / 250:.1f} KB, activations 81.7 KB, backward pass 23.0 KB"
    )


def test_the_memory_of_a_run_in_phases_is_that_of_its_largest_phase():
    config = make_config(
        options={"max_seq_length": 8},
        training={"steps": 0, "batch_size": 64},
        phases=[{"steps": 1, "batch_size": 4}, {"steps": 1, "batch_size": 8, "options": {"max_seq_length": 16}}],
    )
    task = load_task(config)
    largest, _ = announcement.announce(Trainer(task.recipe(task.build_model()), make_strategy(Placement()), 2), config)
    assert "each 8 rows of 16 tokens at once" in largest


@pytest.mark.parametrize(
    ("size", "rows", "length", "measured"),
    [
        ("tiny", 64, 128, 766),
        ("small", 16, 256, 1994),
        ("small", 32, 128, 1859),
        ("base", 4, 128, 2853),
        ("base", 8, 128, 3313),
        ("base", 1, 512, 2882),
    ],
)
def test_the_estimate_is_near_the_peaks_that_a_benchmark_measured(root, size, rows, length, measured):
    config = load_config(
        str(root / f"configs/model/{size}.yaml"),
        overrides=[f"options.max_seq_length={length}", f"options.max_predictions_per_seq={length * 15 // 100}"],
    )
    parameters = {"tiny": 4.4e6, "small": 29.1e6, "base": 110.1e6}[size]
    found = sum(announcement.memory_of(config, int(parameters), rows, length).values()) / 1e6
    # MB; the process also holds graphs and compiled code, and its allocator wastes some
    assert 0.82 * measured < found < measured


def test_memory_follows_precision_and_recomputation():
    model = {"model": {}, "options": {"max_seq_length": 128, "max_predictions_per_seq": 20}}
    full, half, recomputed, without_attention = (
        build(Config, model | {"training": training})
        for training in ({}, {"precision": "bfloat16"}, {"recompute": True}, {"recompute": "attention"})
    )
    found = announcement.memory_of(full, 110_106_428, 8, 128)
    assert found["weights"] == found["gradients"] == 440_425_712 and found["moments"] == 880_851_424
    assert found["activations"] == 12 * 1024 * (11 * 768 + 2 * 3072 + 24 * 128) * 4 + 8 * 20 * 30522 * 8
    logits = 8 * 20 * 30522 * 8
    assert announcement.activation_bytes(half, 8, 128) - logits == (found["activations"] - logits) / 2
    assert announcement.activation_bytes(recomputed, 8, 128) < 0.3 * found["activations"]
    weights = 1024 * 24 * 128 * 4  # of one layer, which is there while it is recomputed
    assert announcement.activation_bytes(without_attention, 8, 128) == found["activations"] - 11 * weights


def test_a_gpu_without_its_libraries_is_told(monkeypatch):
    assert announcement.missing_libraries() == [] or announcement.nvidia_devices()
    monkeypatch.setattr(announcement, "nvidia_devices", lambda: ["/dev/nvidia0"])
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    [told] = announcement.missing_libraries()
    assert told.startswith("warning: this machine has an NVIDIA GPU") and "the CPU computes" in told
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    assert announcement.missing_libraries() == []


def test_a_warm_up_that_is_longer_than_the_training_is_told():
    [told] = announcement.unreached_rate(Config(optimizer=OptimizerConfig(warmup_steps=500)), 499)
    assert "than the training of 499: the learning rate does not reach 0.0001" in told
    assert announcement.unreached_rate(Config(optimizer=OptimizerConfig(warmup_steps=500)), 500) == []


def test_evaluations_without_data_are_told():
    task = load_task(make_config(training={"eval_every": 250}))
    first = Resolved(task=task, model=task.build_model())
    assert announcement.unmeasured(first) == ["no evaluation data: training.eval_every = 250 has no effect"]
    assert announcement.unmeasured(dataclasses.replace(first, task=load_task(make_config()))) == []


def test_the_precision_of_before_comes_back():
    with pytest.raises(KeyError, match="half"), distribution.own_precision():
        distribution.set_precision("bfloat16", tf32=False)
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
        distribution.set_precision("half")
    assert keras.config.dtype_policy().name == "float32"
    assert tf.config.experimental.tensor_float_32_execution_enabled()


@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_what_the_configuration_says(tf32):
    try:
        distribution.set_precision("float32", tf32)
        assert tf.config.experimental.tensor_float_32_execution_enabled() == tf32
    finally:
        distribution.set_precision("float32")


def test_the_choices_and_the_texts_of_rows_that_were_cut_are_counted(tmp_path):
    long, short = " ".join(["sat"] * 12), "sat"
    # With 16 tokens: [CLS] 12 words [SEP] 1 word [SEP] fits, 12 words and 2 do not; 3 words and 2 do.
    rows = [
        (long, [short, f"{short} sat"]),
        (long, [long, short, f"{short} sat"]),
        ("sat sat sat", [short, f"{short} sat"]),
    ]
    (tmp_path / "choices.jsonl").write_text(
        "".join(json.dumps({"text": text, "endings": endings, "label": 0}) + "\n" for text, endings in rows)
    )
    config = make_finetuning(
        "swag", options={"max_seq_length": 16, "text_column": "text", "begin_column": "", "choices_column": "endings"}
    )
    found = resolve(config, Steps(train=False), eval_file=tmp_path / "choices.jsonl")
    assert announcement.cut_rows(found) == {"evaluation choices": (3, 7)}
    assert announcement.cut_lines(found, config) == [
        "cut to 16 tokens: 3 of 7 evaluation choices; the model does not see the rest: a "
        "higher max_seq_length shows it more"
    ]
    (tmp_path / "pairs.tsv").write_text(f"text\ttext_pair\n{long}\t{short}\n{long} {long}\tsat sat\n")  # 14 tokens fit
    config = make_finetuning(
        "retrieval", options={"max_seq_length": 14, "group_size": 2}, training={"eval_batch_size": 2}
    )
    found = resolve(config, Steps(train=False), eval_file=tmp_path / "pairs.tsv")
    assert announcement.cut_lines(found, config) == [
        "cut to 14 tokens: 1 of 4 evaluation texts; the model does not see the rest: a higher max_seq_length shows it "
        "more"
    ]
    # Windows of [CLS] 6 words [SEP]: of these texts three have 7 or more words.
    texts = "".join(f"{' '.join(['sat'] * count)}\t{count % 2}\n" for count in (3, 6, 7, 12, 40))
    (tmp_path / "texts.tsv").write_text(f"text\tlabel\n{texts}")
    config = make_finetuning(
        "classification", options={"max_seq_length": 8, "truncate": "windows", "doc_stride": 3, "labels": ["0", "1"]}
    )
    found = resolve(config, Steps(train=False), eval_file=tmp_path / "texts.tsv")
    assert announcement.cut_rows(found) == {"evaluation": (3, 5)}
    assert announcement.cut_lines(found, config) == ["read in several windows of 8 tokens: 3 of 5 evaluation rows"]


def test_texts_that_the_vocabulary_cannot_spell_are_told(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sat", "it"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    for name, text in (("spelled", "it sat"), ("strange", "the dog it")):  # [CLS] [UNK] [UNK] it [SEP]: 40 %
        (tmp_path / f"{name}.csv").write_text("text,label\n" + f"{text},a\n{text},b\n" * 3)
        config = make_finetuning(
            "classification",
            options={"max_seq_length": 8},
            tokenizer={"vocab_file": str(tmp_path / "vocab.txt")},
            model={"vocab_size": 7},
        )
        found = resolve(config, Steps(evaluate=False), train_file=tmp_path / f"{name}.csv")
        lines = announcement.unknown_lines(found)
        assert [line[:61] for line in lines] == ["warning: 40% of the tokens of the training rows are [UNK], wo"] * (
            name == "strange"
        )


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            28,
            "warning: 28 rows to evaluate on, fewer than 100: a share of right answers is uncertain by up to 19 points",
        ),
        (1, "warning: 1 row to evaluate on"),
        (100, ""),
    ],
)
def test_few_rows_to_evaluate_on_are_a_warning(rows, line, tmp_path):
    """Of 28 rows, 14 right ones are from 30.65 % to 69.35 % (Clopper and Pearson's table)."""
    file = tmp_path / "dev.csv"
    file.write_text("text,label\n" + "".join(f"the film {row},{'ab'[row % 2]}\n" for row in range(rows)))
    config = make_finetuning("classification", options={"labels": ["a", "b"]})
    lines = announcement.few_held_out(resolve(config, Steps(train=False), eval_file=file))
    assert len(lines) == bool(line) and "".join(lines).startswith(line)
