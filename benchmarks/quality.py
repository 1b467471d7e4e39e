"""Fine-tunes on every task with public data, beside Hugging Face's PyTorch, and writes tables in Markdown.

    make venv-torch minilm
    python benchmarks/quality.py --data=FOLDER --init_checkpoint=MODEL_FOLDER
    python benchmarks/quality.py --data=FOLDER --init_checkpoint=MODEL_FOLDER --only=mrpc,rte --threads=1

FOLDER holds `glue/MRPC`, `glue/RTE`, ... as published, `wnut17` and `squad_v1.1`. Each run is one
`benchmarks/finetuning.py` command, and its result one line of --results_file; the same command again does the runs that
are missing there. Every side runs the first seed at three rates, and the other seeds at the rate that was best then.
--norun only writes the tables.
"""

import dataclasses
import fcntl
import json
import os
import pathlib
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from absl import app, flags

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "The folder of the data.", required=True)
flags.DEFINE_string("init_checkpoint", None, "A Hugging Face folder.", required=True)
flags.DEFINE_string(
    "results_file", str(ROOT / "docs/results/finetuning.jsonl"), "A line is added to this file for each run."
)
flags.DEFINE_string(
    "table_file",
    str(ROOT / "docs/results/finetuning_tables.md"),
    "The tables of all its lines, written again after each run.",
)
flags.DEFINE_list("only", [], "Names of comparisons; none: all.")
flags.DEFINE_enum(
    "precision",
    "bfloat16",
    ["bfloat16", "float32"],
    "Of all sides; bfloat16 is faster on processors with AMX only. The tables show the runs of one precision.",
)
flags.DEFINE_integer("threads", 0, "Threads of a run; 0: as many as cores.")
flags.DEFINE_bool("run", True, "Do the missing runs.")
flags.DEFINE_string("work_dir", "build/quality", "The folder for runs.")
flags.DEFINE_string("torch_python", str(ROOT / ".venv-torch/bin/python"), "Python with PyTorch and transformers.")
flags.DEFINE_string("command", str(ROOT / "benchmarks/finetuning.py"), "The program of a run.")
RATES = ("2e-5", "3e-5", "5e-5")
CORRECTED = "--set=optimizer.name=adamw_bias_corrected"  # theirs computes its rates from the same settings
SIDES = {
    "2018": ("official_bert, 2018's rule", ("--sides=ours",)),
    "corrected": ("official_bert, bias-corrected AdamW", ("--sides=ours", CORRECTED)),
    "torch": ("Hugging Face PyTorch, bias-corrected AdamW", ("--sides=theirs", CORRECTED)),
}
INTRODUCTION = """# Fine-tuning beside Hugging Face's PyTorch

Written by `benchmarks/quality.py` from [finetuning.jsonl](finetuning.jsonl), a line for each run. The weights are
MiniLM's (6 layers of 384, `make minilm`), the data the published development sets. Values are mean ± standard deviation
over seeds of the last checkpoint of each run. Both sides compute in {precision} ("mixed precision": weights, updates
and sums are float32 with bfloat16 too). The second and the third row are the same rule: AdamW with bias correction, the
same steps, rates, epsilon, decay, clipping and texts. They differ in initial heads, dropout, and batches (in ours, ten
at a time are sorted by length). The first row is 2018's rule, without bias correction. Each side ran its first seed at
three rates. The row shows the best of them by the first metric, on the same development set.
"""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A table: a task with its flags, the metrics that it shows (the first one chooses the rate), and its seeds."""

    title: str
    flags: tuple[str, ...]
    metrics: Mapping[str, str]  # heading by name
    seeds: int
    minutes: float  # of a run on one core, roughly: for the time left before a run of it is done
    rates: tuple[str, ...] = RATES
    sides: tuple[str, ...] = tuple(SIDES)


NER = ("--task=ner", "--data_dir={data}/wnut17")
ENTITIES = {"f1": "F1 of entities", "precision": "precision", "recall": "recall"}
COMPARISONS = {
    "mrpc": Comparison(
        "MRPC, 3 epochs", ("--task=mrpc", "--data_dir={data}/glue/MRPC"), {"f1": "F1", "accuracy": "accuracy"}, 5, 7
    ),
    "rte": Comparison("RTE, 3 epochs", ("--task=rte", "--data_dir={data}/glue/RTE"), {"accuracy": "accuracy"}, 3, 7),
    "stsb": Comparison(
        "STS-B, 3 epochs",
        ("--task=stsb", "--data_dir={data}/glue/STS-B"),
        {"spearman": "Spearman", "pearson": "Pearson"},
        3,
        8,
    ),
    "cola": Comparison(
        "CoLA, 3 epochs", ("--task=cola", "--data_dir={data}/glue/CoLA"), {"matthews": "Matthews"}, 3, 6
    ),
    "wnut": Comparison("WNUT-17, softmax, 5 epochs", (*NER, "--epochs=5"), ENTITIES, 3, 8),
    "wnut_crf": Comparison(
        "WNUT-17, CRF with legal transitions, 5 epochs",
        (*NER, "--epochs=5", "--set=options.crf=true", "--set=options.constrain=true"),
        ENTITIES,
        3,
        10,
        sides=("2018", "corrected"),
    ),
    "wnut_features": Comparison(
        "WNUT-17, frozen encoder, last four layers, BiLSTM, 10 epochs",
        (*NER, "--epochs=10", "--set=options.features=concat"),
        ENTITIES,
        3,
        8,
        rates=("1e-3",),
        sides=("2018", "corrected"),
    ),
    "squad": Comparison(
        "SQuAD 1.1, 2 epochs of 4,370 questions (5 % of the training part)",
        (
            "--task=squad",
            "--train_file={data}/squad_v1.1/train-v1.1.subset.json",
            "--eval_file={data}/squad_v1.1/dev-v1.1.json",
            "--max_seq_length=384",
            "--epochs=2",
        ),
        {"f1": "F1", "exact_match": "exact match"},
        1,
        45,
    ),
    "sst2": Comparison(
        "SST-2, 1 epoch", ("--task=sst2", "--data_dir={data}/glue/SST-2", "--epochs=1"), {"accuracy": "accuracy"}, 1, 25
    ),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One training."""

    name: str
    side: str
    rate: str
    seed: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """The run's flags, without paths: what its result depends on."""
        return (
            *COMPARISONS[self.name].flags,
            *SIDES[self.side][1],
            f"--precision={FLAGS.precision}",
            f"--learning_rate={self.rate}",
            f"--first_seed={self.seed}",
        )

    def record(self, metrics: Mapping[str, float], seconds: float) -> dict:
        """The run as a line of the results."""
        return {
            **dataclasses.asdict(self),
            "metrics": metrics,
            "seconds": round(seconds, 1),
            "arguments": shlex.join(self.arguments),
        }


Found = dict[Run, dict]  # the records of finished runs


def best_rate(name: str, side: str, results: Mapping[Run, dict]) -> str | None:
    """Returns the rate of the best first metric at the first seed, the lower of two; None until all have run."""
    comparison = COMPARISONS[name]
    first = {rate: results.get(Run(name, side, rate, 1)) for rate in comparison.rates}
    if None in first.values():
        return None
    metric = next(iter(comparison.metrics))
    return max(first, key=lambda rate: first[rate]["metrics"][metric])


def known_runs(name: str, results: Mapping[Run, dict]) -> Iterator[Run]:
    """Yields a comparison's runs as far as they are known: those of the first seed, then the others at each side's best
    rate.
    """
    comparison = COMPARISONS[name]
    for rate in comparison.rates:
        yield from (Run(name, side, rate, 1) for side in comparison.sides)
    for seed in range(2, comparison.seeds + 1):
        yield from (
            Run(name, side, rate, seed) for side in comparison.sides if (rate := best_rate(name, side, results))
        )


def number_of_runs(name: str) -> int:
    """Returns how many runs a comparison has in all."""
    comparison = COMPARISONS[name]
    return len(comparison.sides) * (len(comparison.rates) + comparison.seeds - 1)


def read_results(path: str) -> Found:
    """Returns the finished runs of a file, as far as their flags are those of today; cuts off a line that was not
    written to its end.
    """
    with open(path, "a+b") as file:
        file.seek(0)
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            file.truncate(len(whole))
    results = {}
    for number, line in enumerate(whole.decode("utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            run = Run(*(record[field.name] for field in dataclasses.fields(Run)))
        except (json.JSONDecodeError, KeyError, TypeError):
            sys.exit(f"error: {path}:{number}: expected the result of a run as JSON, got {line[:60]!r}")
        if run.name in COMPARISONS and run.side in SIDES and record["arguments"] == shlex.join(run.arguments):
            results[run] = record
    return results


def execute(run: Run) -> dict:
    """Runs a training in a process; returns its record. Raises RuntimeError if it fails."""
    folder = os.path.join(FLAGS.work_dir, "_".join(map(str, dataclasses.astuple(run))))
    os.makedirs(folder, exist_ok=True)
    result = os.path.join(folder, "result.json")
    command = [
        sys.executable,
        FLAGS.command,
        *(part.format(data=FLAGS.data) for part in run.arguments),
        f"--init_checkpoint={FLAGS.init_checkpoint}",
        f"--threads={FLAGS.threads}",
        f"--work_dir={os.path.join(folder, 'run')}",
        "--resume",
        f"--result_file={result}",
        f"--torch_python={FLAGS.torch_python}",
    ]
    with open(os.path.join(folder, "log.txt"), "a", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        try:
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
    if status:
        raise RuntimeError(f"ended with status {status}; its output is in {log.name}")
    [measured] = json.loads(pathlib.Path(result).read_text(encoding="utf-8"))[
        "theirs" if run.side == "torch" else "ours"
    ]
    shutil.rmtree(folder)
    return run.record(measured["metrics"], measured["command"])


def work_through(names: Sequence[str], results: Found) -> list[Run]:
    """Does the missing runs one after another, and writes each result at once; returns those that failed."""
    failed: list[Run] = []
    while run := next(
        (run for name in names for run in known_runs(name, results) if run not in results and run not in failed), None
    ):
        done = sum(run_done.name in names for run_done in results)
        total = sum(map(number_of_runs, names))
        print(
            f"{done + 1} of {total}, about {hours_left(names, results):.1f} h left: {run.name}, {SIDES[run.side][0]}, "
            f"rate {run.rate}, seed {run.seed}",
            flush=True,
        )
        try:
            results[run] = execute(run)
        except RuntimeError as error:
            failed.append(run)
            print(f"error: {run}: {error}", file=sys.stderr, flush=True)
            continue
        metrics = ", ".join(f"{key} {results[run]['metrics'][key]:.4f}" for key in COMPARISONS[run.name].metrics)
        print(f"  {metrics}, {results[run]['seconds'] / 60:.1f} minutes", flush=True)
        with open(FLAGS.results_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(results[run]) + "\n")
        write_tables(results)
    return failed


def hours_left(names: Sequence[str], results: Mapping[Run, dict]) -> float:
    """Returns the expected hours of the missing runs: by the comparison's and side's finished runs, or by its rough
    minutes.
    """
    seconds = 0.0
    for name in names:
        for side in COMPARISONS[name].sides:
            done = [record["seconds"] for run, record in results.items() if (run.name, run.side) == (name, side)]
            missing = number_of_runs(name) // len(COMPARISONS[name].sides) - len(done)
            seconds += missing * (statistics.median(done) if done else 60 * COMPARISONS[name].minutes)
    return seconds / 3600


def write_tables(results: Mapping[Run, dict]) -> None:
    """Writes the page: a table for each comparison that has a finished run."""
    parts = [
        INTRODUCTION.replace("{precision}", FLAGS.precision),
        *(table(name, results) for name in COMPARISONS if any(run.name == name for run in results)),
    ]
    beside = pathlib.Path(FLAGS.table_file + ".new")
    beside.write_text("\n".join(parts), encoding="utf-8")
    beside.replace(FLAGS.table_file)


def table(name: str, results: Mapping[Run, dict]) -> str:
    """Returns a comparison in Markdown: a row for each side, at its best rate once that is known, with all rates of the
    first seed.
    """
    comparison = COMPARISONS[name]
    metric = next(iter(comparison.metrics))
    tried = f"{comparison.metrics[metric]} of seed 1 at {', '.join(comparison.rates)}"
    lines = [
        f"## {comparison.title}\n",
        f"| | rate | seeds | {' | '.join(comparison.metrics.values())} | {tried} |",
        "|---" * (4 + len(comparison.metrics)) + "|",
    ]
    for side in comparison.sides:
        rate = best_rate(name, side, results)
        rows = [
            results[run]["metrics"]
            for run in known_runs(name, results)
            if run in results and (run.side, run.rate) == (side, rate)
        ]
        seeds = f"{len(rows)}" + (f" of {comparison.seeds}" if len(rows) < comparison.seeds else "")
        cells = [spread([row[key] for row in rows]) for key in comparison.metrics]
        first = (results.get(Run(name, side, each, 1)) for each in comparison.rates)
        lines.append(
            " | ".join(
                [
                    f"| {SIDES[side][0]}",
                    rate or "-",
                    seeds,
                    *cells,
                    ", ".join(spread([one["metrics"][metric]] if one else []) for one in first),
                ]
            )
            + " |"
        )
    return "\n".join(lines) + "\n"


def spread(values: Sequence[float]) -> str:
    """Returns mean and standard deviation."""
    if not values:
        return "-"
    return f"{statistics.mean(values):.4f}" + (f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else "")


def main(_) -> None:
    """Runs what is missing; writes the tables."""
    if unknown := set(FLAGS.only) - set(COMPARISONS):
        sys.exit(f"error: --only: expected names of {', '.join(COMPARISONS)}, got {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.makedirs(os.path.dirname(os.path.abspath(FLAGS.results_file)), exist_ok=True)
    with open(FLAGS.results_file, "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"error: --results_file={FLAGS.results_file}: another process adds to it")
        results, failed = read_results(FLAGS.results_file), []
        began = time.monotonic()
        if FLAGS.run:
            failed = work_through(FLAGS.only or list(COMPARISONS), results)
            print(f"{(time.monotonic() - began) / 3600:.1f} h; {FLAGS.table_file}")
        write_tables(results)
    if failed:
        sys.exit(f"error: {len(failed)} runs failed; the same command tries them again")


if __name__ == "__main__":
    app.run(main)
