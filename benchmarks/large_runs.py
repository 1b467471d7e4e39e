"""Measures commands on large things: BERT-large from its first step to an export, and 10,000 files of records.

    python benchmarks/large_runs.py --text=corpus.txt --vocab_file=vocab.txt --work_dir=/big/disk
    python benchmarks/large_runs.py --text=corpus.txt --vocab_file=vocab.txt --parts=files

`--text` is prepared text (tools/prepare_corpus.py) of some megabytes. Each command is a process of its own; memory is
what it and its children hold themselves (RssAnon). Trainings are a few steps: what is asked is whether they run,
resume, and in which memory.
"""

import contextlib
import pathlib
import shutil
from collections.abc import Iterator

from absl import app, flags
from measured_commands import ROOT, timed

FLAGS = flags.FLAGS
flags.DEFINE_string("text", None, "Prepared text.", required=True)
flags.DEFINE_string("vocab_file", None, "A vocabulary.", required=True)
flags.DEFINE_string(
    "work_dir",
    "build/benchmark_large_runs",
    "A folder for records and runs, which is emptied at the end; 20 GB for BERT-large.",
)
flags.DEFINE_list("parts", ["large", "files"], "What to measure.")
flags.DEFINE_string("model", "large", "A file of configs/model: the model of the part large.")
flags.DEFINE_integer("rows", 2, "Rows of 128 tokens a step of that model.", lower_bound=1)
flags.DEFINE_integer("files", 10_000, "Files of records.", lower_bound=1)

Command = tuple[str, str, list[str]]  # what it does, its module or file, its arguments


def records(output: pathlib.Path) -> Command:
    """The command that makes records."""
    return (
        f"records, {output.name}",
        "tools/create_pretraining_data.py",
        [
            f"--input_file={FLAGS.text}",
            f"--vocab_file={FLAGS.vocab_file}",
            f"--output_file={output}",
            "--max_seq_length=128",
            "--max_predictions_per_seq=20",
            "--dupe_factor=1",
        ],
    )


def training(what: str, work: pathlib.Path, name: str, model: str, files: str, rows: int, steps: int) -> Command:
    """The command that trains a run up to a step, from its newest checkpoint if it has one."""
    settings = [
        f"training.batch_size={rows}",
        f"training.steps={steps}",
        "training.save_every=2",
        "training.log_every=1",
        "training.keep_checkpoints=1",
        "options.max_seq_length=128",
        "options.max_predictions_per_seq=20",
        "task=pretraining",
    ]
    return (
        what,
        "official_bert.run_pretraining",
        [
            f"--config={ROOT}/configs/model/{model}.yaml",
            f"--input_file={work}/{files}",
            f"--vocab_file={FLAGS.vocab_file}",
            f"--output_dir={work}/{name}",
            *(f"--set={setting}" for setting in settings),
        ],
    )


def large(work: pathlib.Path) -> Iterator[Command]:
    """BERT-large trained, continued, converted there and back, exported."""
    yield records(work / "train.tfrecord")
    for steps, what in ((2, "trains two steps, writes a checkpoint"), (4, "resumes, two more steps")):
        yield training(f"{FLAGS.model}: {what}", work, "run", FLAGS.model, "train.tfrecord", FLAGS.rows, steps)
    yield (
        f"{FLAGS.model}: converts to Hugging Face",
        "tools/convert_checkpoint.py",
        [f"--input={work}/run", "--to=hugging_face", f"--output={work}/hugging_face"],
    )
    yield (
        f"{FLAGS.model}: from there to TF 1",
        "tools/convert_checkpoint.py",
        [f"--input={work}/hugging_face", "--to=tf1", f"--output={work}/tf1"],
    )
    yield f"{FLAGS.model}: exports", "official_bert.run_export", [f"--checkpoint={work}/run", f"--output={work}/model"]


def many_files(work: pathlib.Path) -> Iterator[Command]:
    """A tiny model on one file of records, then on the same records in many files, without and with their index."""
    for name, files, count in (("one", "one.tfrecord", 1), ("many", "many.tfrecord-*", FLAGS.files)):
        yield records(work / ("one.tfrecord" if count == 1 else f"many.tfrecord@{count}"))
        for steps, what in ((2, "starts"), (4, "resumes")):
            yield training(f"tiny, {count:,} files: {what}", work, name, "tiny", files, 8, steps)


def main(_) -> None:
    """Runs the commands and prints a table in Markdown."""
    work = pathlib.Path(FLAGS.work_dir)
    work.mkdir(parents=True)
    print("| command | seconds | processor seconds | own memory, MB | disk, MB |\n|---|---|---|---|---|")
    try:
        for what, program, arguments in (
            command for part in FLAGS.parts for command in (large if part == "large" else many_files)(work)
        ):
            start = ["-m", program] if program.startswith("official_bert") else [str(ROOT / program)]
            result = timed(*start, *arguments, folder=work)
            if what.endswith(("resumes", "more steps")) and "resumed: " not in result["output"] + result["errors"]:
                raise SystemExit(f"error: {what}: expected a run that continues, got {result['output'][-500:]}")
            print(
                f"| {what} | {result['seconds']:.0f} | {result['cpu_seconds']:.0f} | {result['memory'] / 1e6:,.0f} | "
                f"{result['disk'] / 1e6:,.0f} |",
                flush=True,
            )
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(work)


if __name__ == "__main__":
    app.run(main)
