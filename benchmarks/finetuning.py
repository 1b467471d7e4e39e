r"""Compares our fine-tuning with Hugging Face's PyTorch loop: time, quality, and equal losses from equal weights.

    make venv-torch minilm
    python benchmarks/finetuning.py --task=mrpc --data_dir=MRPC --init_checkpoint=MODEL_FOLDER --seeds=5
    python benchmarks/finetuning.py --task=mrpc --data_dir=MRPC --init_checkpoint=MODEL_FOLDER --prove

    python benchmarks/finetuning.py --task=ner --data_dir=WNUT17 --init_checkpoint=MODEL_FOLDER \
        --set=options.crf=true --sides=ours

    python benchmarks/finetuning.py --task=mrpc --data_dir=MRPC --init_checkpoint=MODEL_FOLDER \
        --set='training.adapters={rank: 8}' --learning_rate=1e-3

MODEL_FOLDER is a Hugging Face folder. Both sides take turns on the same machine, with the same texts, batch size,
steps, rates of each step, epsilon, decay, clipping and dynamic padding; for tags and questions (`--task=squad`) also
with the same rows. Theirs is AdamW with bias correction: `--set=optimizer.name=adamw_bias_corrected` makes ours the
same rule. Both measure the last checkpoint. `--prove` compares the losses of the first 20 steps with the same weights,
head and batches and without dropout; they may differ by 1e-4.
"""

import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("task", "mrpc", "A data set of GLUE, ner or squad.")
flags.DEFINE_string("data_dir", "", "Its folder.")
flags.DEFINE_string("train_file", "", "Training data, instead of the file in --data_dir.")
flags.DEFINE_string("eval_file", "", "Development data, instead of the file in --data_dir.")
flags.DEFINE_multi_string("set", [], "Further settings of our side, as key=value.")
flags.DEFINE_enum("sides", "both", ["both", "ours", "theirs"], "Which of the two run.")
flags.DEFINE_string("init_checkpoint", None, "A Hugging Face folder.", required=True)
flags.DEFINE_string("work_dir", "build/benchmark_finetuning", "The folder for runs; its content is replaced.")
flags.DEFINE_bool("resume", False, "Keep the content of --work_dir: our side continues a stopped run.")
flags.DEFINE_string("result_file", "", "Where to write the runs as JSON: seed, seconds, metrics, by side.")
flags.DEFINE_string("torch_python", str(ROOT / ".venv-torch/bin/python"), "Python with PyTorch and transformers.")
flags.DEFINE_integer("seeds", 1, "Runs of each side.")
flags.DEFINE_integer("first_seed", 1, "The seed of the first of them.")
flags.DEFINE_integer("threads", 0, "Threads of a run; 0: as many as cores.")
flags.DEFINE_integer("batch_size", 32, "Rows a step.")
flags.DEFINE_float("learning_rate", 5e-5, "Peak.")
flags.DEFINE_float("epochs", 3.0, "Passes over the training data.")
flags.DEFINE_integer("max_seq_length", 128, "Longest input.")
flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16"], "Of both sides; bfloat16: products in it, weights in float32."
)
flags.DEFINE_bool("prove", False, "Compare losses instead.")
STEPS_COMPARED, LARGEST = 20, 1e-4
OURS, THEIRS = "official_bert", "Hugging Face PyTorch"
SIDES = {OURS: "ours", THEIRS: "theirs"}  # by value of --sides
KINDS = {"ner": "tags", "squad": "spans"}  # of the peer's models, where it is given rows
PEER = ROOT / "benchmarks" / "finetune_hugging_face.py"


def overrides() -> list[str]:
    """Returns the settings that both sides share, in our form: the steps and the checkpoint of 2018's scripts."""
    from official_bert.config import AS_IN_2018

    return [
        *(f"training.{key}={value}" for key, value in AS_IN_2018["training"].items()),
        f"training.batch_size={FLAGS.batch_size}",
        f"optimizer.learning_rate={FLAGS.learning_rate}",
        f"training.epochs={FLAGS.epochs}",
        f"options.max_seq_length={FLAGS.max_seq_length}",
        f"training.precision={FLAGS.precision}",
        "training.log_every=1000000",
        *FLAGS.set,
    ]


def given_files():
    """Returns the data that the flags name."""
    from official_bert.tasks.data import DataFiles

    return DataFiles(data_dir=FLAGS.data_dir, train_file=FLAGS.train_file, eval_file=FLAGS.eval_file)


def resolve(*more: str):
    """Returns the task with the settings of the flags, its data and its model."""
    from official_bert.config import load_config
    from official_bert.runs.configuration import run_config
    from official_bert.tasks.data import TRAIN_AND_EVALUATE
    from official_bert.tasks.loading import dataset_name, load_task

    named = ["task=glue", f"options.dataset={FLAGS.task}"] if dataset_name(FLAGS.task) else [f"task={FLAGS.task}"]
    config = load_config(
        None,
        overrides=[*named, *overrides(), *more],
        defaults=run_config.DEFAULTS,
        checkpoint=run_config.checkpoint_values(FLAGS.init_checkpoint),
    )
    return load_task(config).data.resolve(given_files(), TRAIN_AND_EVALUATE)


def run_ours(seed: int) -> dict:
    """Runs our command; returns seconds from the line on weights to the last step (tracing included), and metrics."""
    folder = os.path.join(FLAGS.work_dir, f"ours_{seed}")
    command = [
        sys.executable,
        "-u",
        "-m",
        "official_bert.run_finetuning",
        f"--task={FLAGS.task}",
        f"--data_dir={FLAGS.data_dir}",
        f"--train_file={FLAGS.train_file}",
        f"--eval_file={FLAGS.eval_file}",
        f"--init_checkpoint={FLAGS.init_checkpoint}",
        f"--output_dir={folder}",
        "--cache_dir=",
        f"--set=seed={seed}",
        *(f"--set={text}" for text in overrides()),
    ]
    began, metrics, marks = time.monotonic(), {}, {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        for line in process.stdout:
            marks.setdefault(line.split(" ")[0].strip(":\n"), time.monotonic())
            name, equals, value = line.strip().partition(" = ")
            if equals:
                metrics[name] = float(value.removesuffix(" %")) / (100.0 if value.endswith(" %") else 1.0)
    if process.returncode:
        sys.exit(f"error: run_finetuning ended with status {process.returncode}")
    shutil.rmtree(folder)
    loaded = marks.get("initialized") or marks["resumed"]
    return {
        "seed": seed,
        "seconds": marks.get("step", loaded) - loaded,
        "command": time.monotonic() - began,
        "metrics": metrics,
    }


def environment() -> dict[str, str]:
    """Returns the environment of our command: this checkout's package, and the number of threads."""
    threads = (
        {"TF_NUM_INTRAOP_THREADS": str(FLAGS.threads), "OMP_NUM_THREADS": str(FLAGS.threads)} if FLAGS.threads else {}
    )
    return os.environ | threads | {"PYTHONPATH": str(ROOT)}


def run_theirs(seed: int, resolved) -> dict:
    """Runs Hugging Face's loop; returns seconds of its training steps, and metrics from the same functions as ours."""
    run = {
        "seed": seed,
        "threads": FLAGS.threads or len(os.sched_getaffinity(0)),
        "batch_size": FLAGS.batch_size,
        "rates": rates_of(resolved),
        "epsilon": resolved.task.config.optimizer.epsilon,
        "max_seq_length": FLAGS.max_seq_length,
        "precision": FLAGS.precision,
        "adapters": adapters_of(resolved.task.config.training.adapters),
    }
    measure = of_rows(run, resolved) if FLAGS.task in KINDS else of_texts(run, resolved)
    path = os.path.join(FLAGS.work_dir, "run.json")
    pathlib.Path(path).write_text(json.dumps(run), encoding="utf-8")
    began = time.monotonic()
    found = ask_peer("train", path)
    return {
        "seed": seed,
        "seconds": found["seconds"],
        "command": time.monotonic() - began,
        "metrics": measure(found["logits"]),
    }


def adapters_of(settings) -> dict | None:
    """Returns settings of adapters under the names of PEFT's arguments."""
    if settings is None:
        return None
    targets = settings.target_modules
    return {
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "bias": settings.bias,
        "use_rslora": settings.use_rslora,
        "target_modules": targets if isinstance(targets, str) else list(targets),
    }


def rates_of(resolved, most: int = 0) -> list[float]:
    """Returns the learning rate of each step of our run, or of the first `most`, for theirs to use too."""
    import tensorflow as tf

    from official_bert.training import learning_rate
    from official_bert.training.phase import epoch_steps

    config = resolved.task.config
    total = epoch_steps(config.training, resolved.train)
    return [
        float(learning_rate.scheduled_rate(config.optimizer, tf.constant(step), total)) for step in range(most or total)
    ]


def of_texts(run: dict, resolved):
    """Adds texts and labels to the peer's input; returns the function from its logits to metrics."""
    from official_bert.tasks.texts import metrics

    task, held_out = resolved.task, resolved.held_out.sets[0].data
    _, train = task.data.read_train(given_files())
    run |= {
        "kind": "texts",
        "num_labels": task.num_outputs,
        "train": {"texts": [train.text, train.text_pair], "labels": train.targets.tolist()},
        "eval": {"texts": [held_out.text, held_out.text_pair]},
    }
    return lambda logits: metrics.measure(task.answers.metrics, held_out.targets, np.array(logits), "")


def of_rows(run: dict, resolved):
    """Does the same for tasks with rows made here: ids, and the tag of each first piece or the start and end of
    answers.
    """
    train, held_out = resolved.train, resolved.held_out.source
    names = ("start_positions", "end_positions") if FLAGS.task == "squad" else ("labels",)
    run |= {
        "kind": KINDS[FLAGS.task],
        "num_labels": 2 if FLAGS.task == "squad" else len(resolved.task.options.labels),
        "train": inputs_of(train.examples),
        "eval": inputs_of([held_out.examples[i] for i in np.concatenate(held_out.plan(0))]),
    }
    # -100 marks tokens without loss in PyTorch.
    answers = {
        name: [
            np.where(row["tag_mask"] > 0, row["tags"], -100).tolist() if name == "labels" else int(row[name])
            for row in train.examples
        ]
        for name in names
    }
    run["train"] |= answers
    outputs = ("start_logits", "end_logits")

    def measure(logits):
        rows = [np.array(row, np.float32) for row in logits]
        return resolved.held_out.evaluate(
            [dict(zip(outputs, row.T)) if FLAGS.task == "squad" else {"logits": row} for row in rows]
        )

    return measure


def inputs_of(rows) -> dict[str, list[list[int]]]:
    """Returns rows under the names of the peer's inputs."""
    names = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    return {name: [row[ours].tolist() for row in rows] for name, ours in names.items()}


def ask_peer(*arguments: str):
    """Returns the peer's output."""
    done = subprocess.run(
        [
            FLAGS.torch_python,
            PEER,
            arguments[0],
            FLAGS.init_checkpoint if arguments[0] == "train" else arguments[1],
            arguments[-1],
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode < 0:
        sys.exit(f"error: the peer was ended by {signal.Signals(-done.returncode).name}")
    if done.returncode:
        sys.exit(f"error: the peer failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare() -> None:
    """Runs both sides, or one, in turn; prints a table in Markdown."""
    resolved = resolve() if FLAGS.sides != "ours" else None
    runs: dict[str, list[dict]] = {
        name: [] for name in (OURS, THEIRS) if FLAGS.sides == "both" or FLAGS.sides == SIDES[name]
    }
    for seed in range(FLAGS.first_seed, FLAGS.first_seed + FLAGS.seeds):
        for name, results in runs.items():
            results.append(run_ours(seed) if name == OURS else run_theirs(seed, resolved))
            print(f"seed {seed}, {name}: {results[-1]}", file=sys.stderr, flush=True)
    if FLAGS.result_file:
        pathlib.Path(FLAGS.result_file).write_text(
            json.dumps({SIDES[name]: results for name, results in runs.items()}), encoding="utf-8"
        )
    common = set.intersection(*(set(results[0]["metrics"]) for results in runs.values()))
    names = [name for name in next(iter(runs.values()))[0]["metrics"] if name in common]
    print(f"| {FLAGS.task}, {FLAGS.seeds} seeds | training (s) | whole command (s) | {' | '.join(names)} |")
    print("|---" * (3 + len(names)) + "|")
    for name, results in runs.items():
        times = [f"{statistics.median(run[key] for run in results):.1f}" for key in ("seconds", "command")]
        print(
            f"| {name} | "
            f"{' | '.join([*times, *(spread([run['metrics'][metric] for run in results]) for metric in names)])} |"
        )
    if len(runs) == 1:
        return
    ours, theirs = (statistics.median(run["seconds"] for run in results) for results in runs.values())
    print(f"\ntraining {theirs / ours:.2f} times as fast")


def spread(values: list[float]) -> str:
    """Returns mean and standard deviation."""
    return f"{statistics.mean(values):.4f}" + (f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else "")


def prove() -> None:
    """Compares the losses of the same batches on both sides; exits with an error if they differ."""
    import tensorflow as tf

    from official_bert.models import checkpoints
    from official_bert.models.interchange import formats
    from official_bert.models.interchange.projects import ours
    from official_bert.models.interchange.stored_models import StoredModel
    from official_bert.training.machines.cluster import Placement
    from official_bert.training.machines.distribution import make_strategy
    from official_bert.training.phase import epoch_steps
    from official_bert.training.trainer import Trainer

    strategy = make_strategy(Placement())
    resolved = resolve(
        "optimizer.name=adamw_bias_corrected",
        "options.dropout=0.0",
        "model.hidden_dropout_prob=0.0",
        "model.attention_probs_dropout_prob=0.0",
    )
    task, source = resolved.task, resolved.train
    trainer = Trainer(resolved.recipe, strategy, epoch_steps(task.config.training, source))
    checkpoints.initialize_from(trainer.model, FLAGS.init_checkpoint)
    weights = {name: value.numpy() for name, value in ours.named_weights(trainer.model).items()}
    folder = os.path.join(FLAGS.work_dir, "beginning")
    formats.write(
        StoredModel(
            origin="the beginning",
            weights=weights,
            table=ours.TABLE,
            config=task.config.model,
            head="classifier",
            labels=list(task.options.labels),
        ),
        "hugging_face",
        folder,
    )
    batches = list(source.dataset().take(STEPS_COMPARED))
    # An epoch's last batch is filled up with rows of weight 0, which are not examples.
    inputs_of_steps = {
        f"{name}_{step}": value.numpy()[batch["example_weights"].numpy() > 0]
        for step, batch in enumerate(batches)
        for name, value in batch.items()
    }
    np.savez(
        os.path.join(FLAGS.work_dir, "batches.npz"),
        epsilon=task.config.optimizer.epsilon,
        rates=rates_of(resolved, STEPS_COMPARED),
        **inputs_of_steps,
    )
    iterator = iter(source.dataset())
    rows = np.concatenate([trainer.run_steps(iterator, tf.constant(1)).numpy() for _ in range(STEPS_COMPARED)])
    our_losses = rows[:, trainer.step.names.index("loss")]
    peer_losses = np.array(ask_peer("losses", folder, os.path.join(FLAGS.work_dir, "batches.npz")))
    for step, (our_loss, peer_loss) in enumerate(zip(our_losses, peer_losses), 1):
        print(f"step {step:2}  official_bert {our_loss:.6f}  PyTorch {peer_loss:.6f}  {abs(our_loss - peer_loss):.1e}")
    worst = float(np.abs(our_losses - peer_losses).max())
    print(f"largest difference over {STEPS_COMPARED} steps: {worst:.1e}")
    if not worst <= LARGEST:
        sys.exit(f"error: expected at most {LARGEST}")


def main(_) -> None:
    """Compares or proves."""
    if (FLAGS.prove or FLAGS.sides != "ours") and not os.path.exists(FLAGS.torch_python):
        sys.exit(f"error: --torch_python={FLAGS.torch_python}: not there; `make venv-torch` makes it")
    if FLAGS.prove and FLAGS.precision != "float32":
        sys.exit(
            f"error: --prove: expected --precision=float32 (losses of bfloat16 differ by more than {LARGEST}), got "
            f"{FLAGS.precision}"
        )
    if FLAGS.prove and FLAGS.task in KINDS:
        sys.exit(f"error: --prove: expected a data set of GLUE as --task, got {FLAGS.task}")
    if not FLAGS.resume:
        shutil.rmtree(FLAGS.work_dir, ignore_errors=True)
    os.makedirs(FLAGS.work_dir, exist_ok=True)
    if FLAGS.prove:
        prove()
    else:
        compare()


if __name__ == "__main__":
    app.run(main)
