"""Re-runs the paper's ablations: makes data, pre-training and fine-tuning for each row of a suite, and a table beside
the paper's numbers.

    python tools/run_ablations.py --suite=tasks --corpus='wikipedia/wiki_[0-3]*,wikipedia/wiki_4[0-8]' \\
        --held_out_corpus=wikipedia/wiki_49 --data=DATA --work_dir=ablations

DATA holds `glue/SST-2`, `glue/MRPC`, ... and `wnut17`. Rows, tasks and suites are in tools/ablations/suites.yaml. All
rows have equal steps, batches and text. `--scale=base` uses the paper's sizes; `--scale=smoke` uses made-up text and
takes a minute or two.

Each stage is a command of its own, with a log. After a kill, the same command continues and does not repeat finished
stages. Each finished row is a line of `results.jsonl`, so rows may be made on different days. `report/` has the table
and the plots.
"""

from official_bert.command_line import require_here, run_main

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from official_bert.config import merge
from official_bert.run_folder import CHECKPOINT, LOCK_FILE, RunFolder
from official_bert.storage.files import absolute, read_json, written_whole
from official_bert.text.loading import VOCAB_FILE
from official_bert.tools.ablations.plan import (
    COMMON,
    Plan,
    TaskEntry,
    generator_flags,
    half_of,
    some_rows,
    steps_of,
    usually_masked,
)
from official_bert.tools.ablations.results import best_of, curve_of, read_rows, remove_weights, values_of
from official_bert.tools.ablations.stages import Stages

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_SEEDS = {"first": 1, "second": 1001}  # of fine-tunings that are evaluated on a part

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "suites_file", "suites.yaml", "The rows and suites: a file in tools/ablations, or the absolute path of another."
)
flags.DEFINE_string("suite", "all", "A suite of --suites_file, or all.")
flags.DEFINE_list("rows", [], "Only these rows of the suite.")
flags.DEFINE_string(
    "scale", "small", "small, base (the paper's sizes) or smoke (made-up text): the size of everything."
)
flags.DEFINE_string(
    "corpus", "", "Raw text to pre-train on: comma-separated paths and globs, as tools/prepare_corpus.py takes."
)
flags.DEFINE_string("held_out_corpus", "", "Raw text to measure on.")
flags.DEFINE_string("data", "", "The folder, on this machine, of the fine-tuning data: glue/SST-2, ..., wnut17.")
flags.DEFINE_string("work_dir", None, "The folder, on this machine, for all files.", required=True)
flags.DEFINE_string(
    "results",
    "",
    "The file, on this machine, of finished rows, a JSON line each (default: results.jsonl in --work_dir).",
)
flags.DEFINE_string(
    "step_times", "", "Milliseconds per step of each row, for equal times: the output of benchmarks/step_times.py."
)
flags.DEFINE_enum(
    "part",
    "all",
    ("all", "first", "second"),
    "Evaluate on all of each development set, or on one half: choose rates and "
    "weights on the first; read the second (or the test part), with other seeds, once.",
)
flags.DEFINE_integer("seeds", 3, "Number of fine-tunings of each task.", lower_bound=2)
flags.DEFINE_integer("num_workers", os.cpu_count() or 1, "Threads of the data tools.")
flags.DEFINE_bool("plan", False, "Print the rows, mark finished ones, and stop.")


@dataclasses.dataclass(frozen=True)
class Suite:
    """Runs the stages of a plan's rows."""

    plan: Plan
    stages: Stages
    corpus: Mapping[str, str]  # "train" and "held_out"
    data: pathlib.Path
    seeds: int
    num_workers: int
    part: str = "all"

    @property
    def work_dir(self) -> pathlib.Path:
        """The folder of all files."""
        return self.stages.work_dir

    @property
    def vocabulary(self) -> pathlib.Path:
        """The vocabulary of all rows."""
        return self.work_dir / "corpus" / VOCAB_FILE

    def check_data(self, rows: Sequence[str]) -> None:
        """Raises ValueError if the data of a task are missing, before hours of pre-training."""
        for task in {task: None for row in rows for task in self.plan.tasks_of(row)}:
            if not (folder := self.data / self.plan.tasks[task].data).is_dir():
                raise ValueError(
                    f"--data={self.data}: expected {self.plan.tasks[task].data} in it, for {task}; no such folder: "
                    f"{folder}"
                )

    def prepare(self) -> None:
        """Prepares the text, and learns the vocabulary from the training part."""
        for part, patterns in self.corpus.items():
            self.stages.run(
                "corpus",
                part,
                [
                    *tool("prepare_corpus"),
                    f"--input_file={patterns}",
                    f"--output_file={self.work_dir / 'corpus' / part}.txt",
                ],
            )
        self.stages.run(
            "corpus",
            "vocabulary",
            [
                *tool("build_vocab"),
                f"--input_file={self.work_dir / 'corpus' / 'train'}.txt",
                f"--output_file={self.vocabulary}",
                f"--vocab_size={self.plan.scale.vocab_size}",
            ],
        )

    def records(self, row: str, part: str) -> str:
        """Makes the records of a row and returns their paths. Rows with the same flags share records.

        Held-out records are masked once, never dynamically.
        """
        more = self.plan.rows[row].data if part == "train" else {}
        config, passes = self.plan.pretraining(row), self.plan.scale.dupe_factor
        if part != "train":
            config, passes = usually_masked(config), 1
        paths = []
        for options in generator_flags(config, more, passes):
            name = f"{part}-{hashlib.sha256(' '.join(options).encode()).hexdigest()[:10]}"
            path = self.work_dir / "records" / f"{name}.tfrecord"
            self.stages.run(
                "records",
                name,
                [
                    *tool("create_pretraining_data"),
                    f"--input_file={self.work_dir / 'corpus' / part}.txt",
                    f"--output_file={path}",
                    f"--vocab_file={self.vocabulary}",
                    f"--num_workers={self.num_workers}",
                    *options,
                ],
            )
            paths.append(str(path))
        return ",".join(paths)

    def pretrain(self, row: str) -> tuple[pathlib.Path, dict]:
        """Pre-trains a row; returns the folder of the run, and its held-out losses."""
        config, run = self.plan.pretraining(row), self.work_dir / "rows" / row / "pretraining"
        if teacher := self.plan.rows[row].teacher:
            config = merge(config, {"training": {"teacher": str(self.pretrain(teacher)[0])}})
        result = self.stages.run(
            f"rows/{row}",
            "pretraining",
            [
                *module("run_pretraining"),
                f"--input_file={self.records(row, 'train')}",
                f"--eval_input_file={self.records(row, 'held_out')}",
                f"--vocab_file={self.vocabulary}",
                f"--output_dir={run}",
            ],
            lambda _: curve_of(run),
            config,
        )
        return run, result

    def held_out(self, row: str, config: dict, weights: pathlib.Path) -> dict[str, float]:
        """Returns the masked-LM metrics on the records of the baseline, which are the same for all rows."""
        common, run = self.plan.pretraining(COMMON), self.work_dir / "rows" / row / "held_out"
        config = merge(
            config,
            {
                "options": {
                    **common["options"],
                    "sentence_loss": False,
                    "sentence_task": "nsp",
                    "masking": {"strategy": "token"},
                }
            },
        )
        if "phases" in config:
            config["phases"] = common.get("phases", [])
        result = self.stages.run(
            f"rows/{row}",
            "held_out",
            [
                *module("run_pretraining"),
                "--mode=eval",
                "--do_eval",
                f"--init_checkpoint={weights}",
                f"--vocab_file={self.vocabulary}",
                f"--eval_input_file={self.records(COMMON, 'held_out')}",
                f"--output_dir={run}",
            ],
            lambda _: {"metrics": RunFolder(str(run)).results},
            config,
        )
        return {name: round(value, 5) for name, value in result["metrics"].items() if name.startswith("mlm_")}

    def finetune(self, row: str, task: str, weights: pathlib.Path | None) -> list[float]:
        """Fine-tunes a row on a task with several seeds; returns the metric of each."""
        entry, config, name = (
            self.plan.tasks[task],
            self.plan.finetuning(row, task),
            task + f"-{self.part}" * (self.part != "all"),
        )
        run = self.work_dir / "rows" / row / name
        if teacher := self.plan.rows[row].task_teacher:
            self.finetune(teacher, task, self.weights_of(teacher))
            config = merge(config, {"training": {"teacher": str(best_of(self.work_dir / "rows" / teacher / name))}})
        if self.part in FIRST_SEEDS:
            config = merge(config, {"seed": FIRST_SEEDS[self.part]})
        source = [f"--vocab_file={self.vocabulary}"] if weights is None else [f"--init_checkpoint={weights}"]
        result = self.stages.run(
            f"rows/{row}",
            name,
            [
                *module("run_finetuning"),
                f"--data_dir={self.data / entry.data}",
                *self._files(task, entry),
                *source,
                f"--output_dir={run}",
                f"--seeds={self.seeds}",
                f"--cache_dir={self.work_dir / 'cache'}",
            ],
            lambda _: {"values": values_of(run, entry.metric)},
            config,
        )
        remove_weights(run)
        return result["values"]

    def weights_of(self, row: str) -> pathlib.Path | None:
        """Returns the pre-trained weights of a row, and makes them if necessary; None for a row with random weights."""
        origin = self.plan.origin_of(row)
        return self.pretrain(origin)[0] if origin else None

    def _files(self, task: str, entry: TaskEntry) -> list[str]:
        """Writes the chosen rows of a task's training file (the same for every row of the tables) and a part of its
        development set; returns the flags that name them.
        """
        folder, flags = self.data / entry.data, []
        if entry.training_rows:
            lines = (folder / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
            flags.append(f"--train_file={self._write(f'{task}.tsv', ''.join(some_rows(lines, entry.training_rows)))}")
        if self.part == "second" and entry.final:
            flags.append(f"--eval_file={folder / entry.final}")
        elif self.part != "all" and entry.dev:
            text = half_of((folder / entry.dev).read_text(encoding="utf-8"), self.part, entry.dev.endswith(".tsv"))
            flags.append(f"--eval_file={self._write(f'{task}-{self.part}{pathlib.Path(entry.dev).suffix}', text)}")
        return flags

    def _write(self, name: str, text: str) -> pathlib.Path:
        """Writes a data file unless it exists; returns its path."""
        path = self.work_dir / "data" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(str(path)) as file:
                file.write(text)
        return path

    def count(self, row: str) -> int:
        """Returns the number of stages of a row and of its teachers, finished or not."""
        origin, teacher = self.plan.origin_of(row), self.plan.rows[row].task_teacher
        masked = origin and self.plan.pretraining(origin)["options"].get("objective", "masked_lm") == "masked_lm"
        of_task = 1 + (1 + self._pretrainings(self.plan.origin_of(teacher)) if teacher else 0)
        return (
            self._pretrainings(origin)
            + (self.plan.lengths_of(COMMON) + 1 if masked else 0)
            + of_task * len(self.plan.tasks_of(row))
        )

    def _pretrainings(self, origin: str) -> int:
        """Returns the number of stages of a pre-training and of its teacher's."""
        return (
            2 * self.plan.lengths_of(origin) + 1 + self._pretrainings(self.plan.rows[origin].teacher) if origin else 0
        )

    def make(self, row: str) -> dict[str, Any]:
        """Runs all stages of a row; returns its line of the results."""
        entry = self.plan.rows[row]
        line: dict[str, Any] = {"row": row, "title": entry.title, "scale": self.plan.scale_name, "held_out": {}}
        weights = None
        if origin := self.plan.origin_of(row):
            weights, result = self.pretrain(origin)
            config = self.plan.pretraining(origin)
            step = round(entry.at_share * steps_of(config))
            if entry.at_share < 1:
                weights, result = weights / f"{CHECKPOINT}-{step}", result | {"own": {}}
            line |= {
                "steps": step,
                "objective": config["options"].get("objective", "masked_lm"),
                "own": result["own"],
                "curve": [point for point in result["curve"] if point[0] <= step],
                "minutes": round(result["seconds"] / 60),
            }
            if line["objective"] == "masked_lm":
                line["held_out"] = self.held_out(row, config, weights)
        line["tasks"] = {
            task: {"metric": self.plan.tasks[task].metric, "values": self.finetune(row, task, weights)}
            for task in self.plan.tasks_of(row)
        }
        return line


def tool(name: str) -> list[object]:
    """Returns the command of one of our tools."""
    return [sys.executable, ROOT / "tools" / f"{name}.py"]


def module(name: str) -> list[object]:
    """Returns the command of one of our modules."""
    return [sys.executable, "-m", f"official_bert.{name}"]


@contextlib.contextmanager
def locked(work_dir: pathlib.Path) -> Iterator[None]:
    """Locks the work folder against a second command. Raises ValueError if it is locked."""
    work_dir.mkdir(parents=True, exist_ok=True)
    with open(work_dir / LOCK_FILE, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--work_dir={work_dir}: another command is using this folder") from None
        yield


def main(_: list[str]) -> None:
    """Makes the unfinished rows, one after another."""
    for flag in ("work_dir", "results", "data"):
        require_here(FLAGS[flag].value or "", flag, "the commands that this one calls share its files")
    plan = Plan.read(
        str(ROOT), FLAGS.scale, FLAGS.suites_file, read_json(FLAGS.step_times)["step"] if FLAGS.step_times else None
    )
    work_dir = pathlib.Path(FLAGS.work_dir).resolve()
    results = pathlib.Path(FLAGS.results).resolve() if FLAGS.results else work_dir / "results.jsonl"
    names = plan.chosen(FLAGS.suite, FLAGS.rows)
    done = (
        [row["row"] for row in read_rows(str(results)) if row["scale"] == plan.scale_name] if results.exists() else []
    )
    if FLAGS.plan:
        print(
            "\n".join(
                f"{'finished' if name in done else '        '}  {name}: {plan.rows[name].title}" for name in names
            )
        )
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: stopped by SIGTERM; the same command continues"))
    plan.check_times([name for name in names if name not in done])
    with locked(work_dir):
        todo = [name for name in names if name not in done]
        stages = Stages(work_dir, ROOT, os.environ)
        given = {name: str(FLAGS[name].value) for name in ("corpus", "held_out_corpus", "data")}
        corpus, data = sources(stages, given, any(map(plan.tasks_of, todo)), FLAGS.scale == "smoke")
        suite = Suite(plan, stages, corpus, data, FLAGS.seeds, FLAGS.num_workers, FLAGS.part)
        make_rows(suite, todo, results, FLAGS.suites_file)
    print(f"{len(names)} rows: {results}; table and plots: {work_dir / 'report'}")


def make_rows(suite: Suite, rows: Sequence[str], results: pathlib.Path, suites_file: str) -> None:
    """Makes rows. After each one, writes its line of the results, and the tables and plots."""
    suite.stages.stages_left = len(suite.corpus) + 1 + sum(map(suite.count, rows))
    suite.check_data(rows)
    suite.prepare()
    for number, name in enumerate(rows, 1):
        print(f"row {number} of {len(rows)}, {name}: {suite.plan.rows[name].title}", flush=True)
        line = suite.make(name)
        before = results.read_text(encoding="utf-8") if results.exists() else ""
        with written_whole(str(results)) as file:
            file.write(f"{before}{json.dumps(line)}\n")
        report(results, suite.work_dir, suite.plan.scale_name, suites_file)


def sources(
    stages: Stages, paths: Mapping[str, str], finetunes: bool, made_up: bool
) -> tuple[dict[str, str], pathlib.Path]:
    """Returns the file patterns of both parts of the text, and the folder of fine-tuning data: from `paths`, or
    `made_up`.
    """
    if made_up:
        folder = stages.work_dir / "made"
        stages.run("made", "text", [*tool("make_ablation_text"), f"--output_dir={folder}"])
        return {part: str(folder / f"{part}.txt") for part in ("train", "held_out")}, folder
    for name in ("corpus", "held_out_corpus", *(["data"] if finetunes else [])):
        if not paths[name]:
            raise ValueError(f"--{name}: expected a path (only --scale=smoke makes up its own data)")
    patterns = {
        part: ",".join(map(absolute, value.split(",")))
        for part, value in (("train", paths["corpus"]), ("held_out", paths["held_out_corpus"]))
    }
    return patterns, pathlib.Path(paths["data"]).resolve()


def report(results: pathlib.Path, work_dir: pathlib.Path, scale: str, suites_file: str) -> None:
    """Writes the tables and plots of the finished rows. Raises ValueError if that fails."""
    command = [
        *map(str, tool("report_ablations")),
        f"--results={results}",
        f"--output_dir={work_dir / 'report'}",
        f"--scale={scale}",
        f"--suites_file={suites_file}",
    ]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise ValueError(
            f"tools/report_ablations.py ended with status {done.returncode}: "
            f"{(done.stdout.splitlines() or ['nothing'])[-1]}"
        )


if __name__ == "__main__":
    run_main(main)
