"""Every flag of the five scripts of 2018 is taken, and the command lines of their README run as they stand there."""

from official_bert.command_line import PLACEMENT, placement_values, refuse_nan

import contextlib
import dataclasses
import json
import random
import re

import pytest
from absl import flags
from commands import run_here
from made_checkpoints import stored_small

from official_bert.flags_of_2018 import defaults_of_2018
from official_bert.models.interchange import formats

TPU = ("use_tpu", "master", "num_tpu_cores")
RUN = (
    "bert_config_file",
    "init_checkpoint",
    "output_dir",
    "max_seq_length",
    "do_train",
    "train_batch_size",
    "learning_rate",
    "save_checkpoints_steps",
    "iterations_per_loop",
    *TPU,
    "tpu_name",
    "tpu_zone",
    "gcp_project",
)
TUNE = (
    *RUN,
    "vocab_file",
    "do_lower_case",
    "do_predict",
    "predict_batch_size",
    "num_train_epochs",
    "warmup_proportion",
)
FLAGS = {
    "tools/create_pretraining_data.py": (
        "input_file",
        "output_file",
        "vocab_file",
        "do_lower_case",
        "do_whole_word_mask",
        "max_seq_length",
        "max_predictions_per_seq",
        "random_seed",
        "dupe_factor",
        "masked_lm_prob",
        "short_seq_prob",
    ),
    "official_bert.run_pretraining": (
        *RUN,
        "input_file",
        "max_predictions_per_seq",
        "do_eval",
        "eval_batch_size",
        "num_train_steps",
        "num_warmup_steps",
        "max_eval_steps",
    ),
    "official_bert.run_classifier": (*TUNE, "data_dir", "task_name", "do_eval", "eval_batch_size"),
    "official_bert.run_squad": (
        *TUNE,
        "train_file",
        "predict_file",
        "doc_stride",
        "max_query_length",
        "n_best_size",
        "max_answer_length",
        "verbose_logging",
        "version_2_with_negative",
        "null_score_diff_threshold",
    ),
    "official_bert.extract_features": (
        "input_file",
        "output_file",
        "layers",
        "bert_config_file",
        "max_seq_length",
        "init_checkpoint",
        "vocab_file",
        "do_lower_case",
        "batch_size",
        "use_one_hot_embeddings",
        *TPU,
    ),
}


def command(script):
    return [script] if script.endswith(".py") else ["-m", script]


@pytest.mark.parametrize("script", FLAGS)
def test_every_flag_of_a_script_is_known_and_stands_in_the_table(script, root):
    told = run_here(*command(script), "--helpfull").stdout
    known = set(re.findall(r"--(?:\[no\])?(\w+):", told))
    assert set(FLAGS[script]) <= known
    documented = set(re.findall(r"`--(\w+)`", (root / "docs/flags_of_2018.md").read_text()))
    assert set(FLAGS[script]) <= documented


@pytest.mark.parametrize(
    "script, flags, told",
    [
        (
            "run_squad",
            ["--master=grpc://x", "--num_tpu_cores=8", "--verbose_logging", "--output_dir=x"],
            r"--master \(--tpu_name finds the TPU\), --num_tpu_cores \(.*\), --verbose_logging \(.*\)",
        ),
        (
            "extract_features",
            [
                "--use_one_hot_embeddings=True",
                "--use_tpu=False",
                "--input_file=none",
                "--output_file=x",
                "--init_checkpoint=none",
            ],
            r"--use_one_hot_embeddings \(.*\), --use_tpu \(.*\)",
        ),
    ],
)
def test_flags_without_meaning_are_told_once(script, flags, told):
    done = run_here("-m", f"official_bert.{script}", *flags)
    lines = [line for line in done.stderr.splitlines() if line.startswith("of 2018")]
    assert len(lines) == 1 and re.fullmatch(rf"of 2018, without meaning here: {told}", lines[0])
    assert "error: " in done.stderr and "Traceback" not in done.stderr  # of what is missing


def test_a_flag_that_is_no_number_is_refused_although_it_is_within_its_bounds():
    values = flags.FlagValues()
    flags.DEFINE_float("held_out", 0.0, "", 0.0, 0.5, flag_values=values)
    flags.DEFINE_float("seconds", 1.0, "", flag_values=values)
    values(["command", "--held_out=0.1", "--seconds=inf"])
    refuse_nan(values)
    values(["command", "--held_out=nan"])
    with pytest.raises(ValueError, match="^--held_out: expected a number, got nan$"):
        refuse_nan(values)


@pytest.mark.parametrize(
    "given, told",
    [
        ({"tpu_name": "local"}, "--tpu_name: expected --strategy=tpu with it, got one_device"),
        ({"num_cpu_devices": 2}, "--num_cpu_devices: expected --strategy=mirrored with it, got one_device"),
        ({"strategy": "tpu", "num_cpu_devices": 2}, "--num_cpu_devices: expected --strategy=mirrored with it, got tpu"),
        (
            {"strategy": "mirrored", "worker_hosts": "a:1,b:1"},
            "--worker_hosts: expected --strategy=multi_worker with it, got mirrored",
        ),
        ({"strategy": "mirrored", "use_tpu": True}, "--use_tpu: means --strategy=tpu, got --strategy=mirrored too"),
        ({"strategy": "mirrored", "num_cpu_devices": 2}, ""),
        ({"use_tpu": True, "tpu_name": "local"}, ""),
        ({"use_tpu": False, "tpu_name": "local"}, ""),
    ],
)
def test_flags_of_another_strategy_are_refused(given, told):
    defaults = {"strategy": "one_device", "use_tpu": False, "num_cpu_devices": 0, "task_index": 0}
    values = flags.FlagValues()
    for name in ("strategy", "use_tpu", *PLACEMENT):
        default = defaults.get(name, "")
        define = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, str: flags.DEFINE_string}[type(default)]
        define(name, default, "", flag_values=values)
    values(["command", *(f"--{name}={value}" for name, value in given.items())])
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$") if told else contextlib.nullcontext():
        found = placement_values(values)
        assert found["strategy"] == given.get("strategy", "tpu" if given.get("use_tpu") else "one_device")
        assert {name: found[name] for name in PLACEMENT if found[name]} == {
            name: given[name] for name in PLACEMENT if name in given
        }


def test_defaults_of_2018_yield_to_the_same_said_in_another_way():
    assert defaults_of_2018([]) == {
        "optimizer.learning_rate": 5e-5,
        "optimizer.warmup_steps": 10000,
        "training.steps": 100000,
        "training.eval_batch_size": 8,
        "training.eval_steps": 100,
    }
    assert "training.steps" not in defaults_of_2018(["training.epochs=2"])
    assert "training.steps" not in defaults_of_2018(["phases=[{steps: 3}]", "seed=1"])
    assert "optimizer.warmup_steps" not in defaults_of_2018(["optimizer.warmup_proportion=0.1"])


# The command lines of 2018's README files (the main one and the multilingual one), without the paths of their data.
BERT = "--vocab_file=$BERT/vocab.txt --bert_config_file=$BERT/bert_config.json"
START = f"{BERT} --init_checkpoint=$BERT/bert_model.ckpt"
SQUAD = (
    "--do_train=True --do_predict=True --learning_rate=3e-5 --num_train_epochs=2.0 --max_seq_length=384 "
    "--doc_stride=128 --train_file=$DATA/train.json --predict_file=$DATA/dev.json --output_dir=$OUT/squad"
)
THRESHOLD = "--null_score_diff_threshold=-1.5"
README = [
    (
        f"run_classifier --task_name=MRPC --do_train=true --do_eval=true --data_dir=$DATA/MRPC {START} "
        f"--max_seq_length=128 "
        "--train_batch_size=32 --learning_rate=2e-5 --num_train_epochs=3.0 --output_dir=$OUT/mrpc/",
        ["mrpc/eval_results.txt"],
    ),
    (
        f"run_classifier --task_name=MRPC --do_predict=true --data_dir=$DATA/MRPC {BERT} --init_checkpoint=$OUT/mrpc "
        "--max_seq_length=128 --output_dir=$OUT/mrpc_output/",
        ["mrpc_output/test_results.tsv"],
    ),
    (
        f"run_classifier --task_name=XNLI --do_train=true --do_eval=true --data_dir=$DATA/XNLI {START} "
        f"--max_seq_length=128 "
        "--train_batch_size=32 --learning_rate=5e-5 --num_train_epochs=2.0 --output_dir=$OUT/xnli/",
        ["xnli/eval_results.txt"],
    ),
    (f"run_squad {START} {SQUAD} --train_batch_size=12", ["squad/predictions.json", "squad/nbest_predictions.json"]),
    (
        f"run_squad {START} {SQUAD}_large/ --train_batch_size=24 --version_2_with_negative=True",
        ["squad_large/predictions.json", "squad_large/null_odds.json"],
    ),
    (
        f"run_squad {START} {SQUAD}_large/ --train_batch_size=24 --version_2_with_negative=True {THRESHOLD}".replace(
            "--do_train=True", "--do_train=False"
        ),
        ["squad_large/predictions.json"],
    ),
    (
        f"extract_features --input_file=$DATA/input.txt --output_file=$OUT/output.jsonl {START} --layers=-1,-2,-3,-4 "
        "--max_seq_length=128 --batch_size=8",
        ["output.jsonl"],
    ),
    (
        "tools/create_pretraining_data.py --input_file=$DATA/sample_text.txt --output_file=$OUT/tf_examples.tfrecord "
        "--vocab_file=$BERT/vocab.txt --do_lower_case=True --max_seq_length=128 --max_predictions_per_seq=20 "
        "--masked_lm_prob=0.15 --random_seed=12345 --dupe_factor=5",
        ["tf_examples.tfrecord"],
    ),
    (
        "run_pretraining --input_file=$OUT/tf_examples.tfrecord --output_dir=$OUT/pretraining --do_train=True "
        f"--do_eval=True {START.removeprefix('--vocab_file=$BERT/vocab.txt ')} --train_batch_size=32 "
        "--max_seq_length=128 --max_predictions_per_seq=20 --num_train_steps=20 --num_warmup_steps=10 "
        "--learning_rate=2e-5",
        ["pretraining/eval_results.txt"],
    ),
    # The same without training.
    (
        "run_pretraining --input_file=$OUT/tf_examples.tfrecord --output_dir=$OUT/pretraining --do_eval=True "
        "--bert_config_file=$BERT/bert_config.json --max_seq_length=128 --max_predictions_per_seq=20",
        [],
    ),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory, golden):
    """A folder with small data of every kind and a small published model."""
    folder, draw = tmp_path_factory.mktemp("readme"), random.Random(0)
    vocab = (golden / "vocab_uncased.txt").read_text().splitlines()
    small = stored_small("pretraining", vocab_size=len(vocab), max_position_embeddings=384, num_hidden_layers=4)
    model = dataclasses.replace(small, vocab=vocab, do_lower_case=True)
    formats.write(model, "tf1", str(folder / "bert"))
    words = [word for word in vocab if word.isalpha() and len(word) > 4][:50]

    def text(count=8):
        return " ".join(draw.choices(words, k=count))

    def table(path, header, row, count):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *(row(number) for number in range(count))]) + "\n")

    mrpc = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    for name, count in (("train", 64), ("dev", 8)):
        table(
            folder / f"MRPC/{name}.tsv",
            mrpc,
            lambda number: f"{number % 2}\t{number}\t{number}\t{text()}\t{text()}",
            count,
        )
    table(
        folder / "MRPC/test.tsv",
        mrpc.replace("Quality", "index"),
        lambda number: f"{number}\t1\t2\t{text()}\t{text()}",
        5,
    )
    labels = ("neutral", "contradictory", "entailment")
    table(
        folder / "XNLI/multinli/multinli.train.zh.tsv",
        "premise\thypo\tlabel",
        lambda number: f"{text()}\t{text()}\t{labels[number % 3]}",
        64,
    )
    table(
        folder / "XNLI/xnli.dev.tsv",
        "language\tgold_label\tsentence1\tsentence2",
        lambda number: f"zh\t{labels[number % 3].replace('ory', 'ion')}\t{text()}\t{text()}",
        9,
    )

    def question(number):
        context = text(30)
        answer = context.split()[5]
        return {
            "context": context,
            "qas": [
                {
                    "id": f"q{number}",
                    "question": text(5),
                    "is_impossible": False,
                    "answers": [{"text": answer, "answer_start": context.index(answer)}],
                }
            ],
        }

    for name, count in (("train", 24), ("dev", 4)):
        data = {"version": "1.1", "data": [{"title": "t", "paragraphs": [question(number) for number in range(count)]}]}
        (folder / f"{name}.json").write_text(json.dumps(data))
    (folder / "input.txt").write_text(f"{text()} ||| {text()}\n{text()}\n")
    (folder / "sample_text.txt").write_text("\n\n".join("\n".join(text() for _ in range(20)) for _ in range(12)) + "\n")
    return folder


@pytest.mark.slow
def test_the_command_lines_of_the_readme_run(place):
    for line, files in README:
        for name, path in (("$BERT", "bert"), ("$DATA", ""), ("$OUT", "out")):
            line = line.replace(name, str(place / path).rstrip("/"))
        script, *flags = line.split()
        (place / "out").mkdir(exist_ok=True)
        done = run_here(*command(script if "/" in script else f"official_bert.{script}"), *flags)
        assert done.returncode == 0, (line, done.stderr)
        assert all((place / "out" / name).stat().st_size for name in files), line
        assert "of 2018" not in done.stderr
    results = (place / "out/mrpc/eval_results.txt").read_text()
    assert {"eval_accuracy", "eval_loss", "global_step", "loss"} <= {
        row.split(" = ")[0] for row in results.splitlines()
    }
    assert "fresh" not in done.stdout and "saved" not in done.stdout and "step = 20," in done.stdout  # only evaluated
