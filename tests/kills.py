"""Kills commands without warning, again and again, and compares what they leave with an undisturbed run, bit by bit.

python tests/kills.py [KIND ...] runs the kinds and prints the table of docs/testing.md.
"""

import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import compare_trainings
import training_cases
from forked import Forked

ROOT = pathlib.Path(__file__).parents[1]
PATIENCE = 600  # seconds until a process has got on
STEPS = {"training.log_every": 3, "training.save_every": 2, "training.steps_per_loop": 2, "training.steps": 90}
FALLING_RATE = {"task": "my_project.falling_rate", "options.max_predictions_per_seq": 8, "options.masking.rate": 0.3}
# The command with small parts, of which a small input has many.
PREDICT = """
from official_bert.interface import many_answers
many_answers.PART = 16
from official_bert.command_line import run_main
from official_bert.commands import run_predict
run_main(run_predict.main)
"""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A command of which the same result is expected however often it is killed."""

    kills: int
    early: int  # of these, kills at any time after the start, perhaps before the first piece
    write: Callable[[pathlib.Path], object]  # its inputs, into a folder
    command: Callable[[str], list[str]]  # by the name of the folder with its output
    pieces: Callable[[pathlib.Path], int]  # how much a killed command has finished
    differences: Callable[[pathlib.Path, pathlib.Path], Iterator[str]]


def trained(name: str, **keys) -> Kind:
    case = next(case for case in training_cases.CASES if case.name == name)

    def command(output: str) -> list[str]:
        return dataclasses.replace(case, name=output, keys={**case.keys, **STEPS, **keys}).arguments()

    return Kind(10, 2, write_trainings, command, last_step, different_runs)


def write_trainings(folder: pathlib.Path) -> None:
    shutil.copytree(ROOT / "docs/own", folder / "my_project", dirs_exist_ok=True)
    if not (folder / "tiny.yaml").exists():
        training_cases.write_data(folder)
        training_cases.write_records(folder)


def last_step(run: pathlib.Path) -> int:
    return max((int(path.stem.removeprefix("ckpt-")) for path in run.glob("ckpt-*.index")), default=0)


def different_runs(whole: pathlib.Path, killed: pathlib.Path) -> Iterator[str]:
    """Yields what differs: all variables of the last checkpoint, the log, the evaluation and its report, names of
    files.
    """
    import run_trainings

    for run in (whole, killed):
        run_trainings.write_variables(run)
    yield from compare_trainings.different_variables(*(run / compare_trainings.WEIGHTS for run in (whole, killed)))
    yield from compare_trainings.different_rows(measured(whole), measured(killed))
    for name in (compare_trainings.RESULTS, "report.json", "best/metric.json"):
        texts = [compare_trainings.text_of(run / name).replace(run.name, "RUN") for run in (whole, killed)]
        yield from compare_trainings.different_values(name, *texts)
    yield from different_names(whole, killed)


def measured(run: pathlib.Path) -> list[dict]:
    """Returns the rows of a log with numbers of training and evaluation, not those that say when a process began."""
    return [row for row in compare_trainings.log_rows(run) if any("/" in key for key in row)]


def different_names(whole: pathlib.Path, killed: pathlib.Path) -> Iterator[str]:
    names = [
        sorted(
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if not path.name.startswith("events.out.tfevents")
        )
        for folder in (whole, killed)
    ]
    yield from compare_trainings.different_values("files", *names)


def different_files(whole: pathlib.Path, killed: pathlib.Path) -> Iterator[str]:
    """Yields what differs between all files of two folders; a note on how they were made may name its folder."""
    yield from different_names(whole, killed)
    for path in sorted(whole.iterdir()):
        other = killed / path.name
        texts = [file.read_bytes().replace(file.parent.name.encode(), b"FOLDER") for file in (path, other)]
        if texts[0] != texts[1]:
            yield f"{path.name}: other bytes"


def write_words(folder: pathlib.Path) -> None:
    golden = [(ROOT / f"tests/golden/text_{name}.txt").read_bytes() for name in "ab"]
    (folder / "text.txt").write_bytes(b"\n".join(golden) * 40)


def generate(output: str) -> list[str]:
    return [
        "tools/create_pretraining_data.py",
        "--input_file=text.txt",
        f"--vocab_file={ROOT}/tests/golden/vocab_uncased.txt",
        f"--output_file={output}/out@24",
        "--dupe_factor=24",
        "--order=sharded",
        "--num_workers=1",
    ]


def write_articles(folder: pathlib.Path) -> None:
    rng = random.Random(0)
    with open(folder / "articles.jsonl", "w", encoding="utf-8") as file:
        for _ in range(120_000):  # 23 pieces, of which a killed command finishes one or two
            sentences = (" ".join(rng.choices(training_cases.WORDS, k=8)).capitalize() + "." for _ in range(6))
            file.write(json.dumps({"text": " ".join(sentences)}) + "\n")


def prepare(output: str) -> list[str]:
    return [
        "tools/prepare_corpus.py",
        "--input_file=articles.jsonl",
        f"--output_file={output}/corpus@3",
        f"--report_file={output}/report.json",
        "--num_workers=1",
        "--drop_duplicates=paragraphs",
    ]


def write_rows(folder: pathlib.Path) -> None:
    from made_checkpoints import stored_small

    from official_bert.models.interchange import formats

    formats.write(stored_small("classifier", num_hidden_layers=1), "ours", str(folder / "run"))
    rows = ({"text": "a b c d "[: 2 * (number % 4) + 1], "id": number} for number in range(6000))
    (folder / "small_parts.py").write_text(PREDICT)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def predict(output: str) -> list[str]:
    files = ["--model=run", "--input_file=rows.jsonl", f"--output_file={output}/answers@4"]
    return ["-m", "small_parts", *files]


def answered(folder: pathlib.Path) -> int:
    """Returns a number that grows with each part: finished files, then parts of the one that is being answered."""
    files = [path for path in folder.glob("answers-*") if path.is_file()]
    return len(files) * 10**9 + results_below(folder)


def results_below(folder: pathlib.Path) -> int:
    return len(list(folder.glob("*.work/*.result")))


KINDS = {
    "pre-training": trained("words_and_sentences"),
    "pre-training, packed": trained("packed_rows"),
    "pre-training, masks on the fly": trained("masks_on_the_fly"),
    "pre-training, a rate that falls": trained("masks_on_the_fly", **FALLING_RATE),
    "fine-tuning with a report": trained("table", **{"training.report": True, "training.eval_every": 20}),
    "generator": Kind(
        8, 0, write_words, generate, lambda folder: len(list(folder.glob("*.work/part-*.json"))), different_files
    ),
    "corpus": Kind(8, 0, write_articles, prepare, results_below, different_files),
    "predictions": Kind(8, 0, write_rows, predict, answered, different_files),
}


def tried(name: str, folder: pathlib.Path, forked: Forked) -> tuple[str, list[str]]:
    """Runs a kind undisturbed and killed; returns its row of the table, and what is wrong."""
    kind, rng, begin = KINDS[name], random.Random(name), time.monotonic()
    kind.write(folder)
    messages, places = folder / "messages.txt", list[int]()

    def start(output: str) -> int:
        (folder / output).mkdir(exist_ok=True)
        return forked.start(kind.command(output), folder, messages)

    def finish(output: str) -> None:
        start(output)
        if forked.wait()[0]:
            raise ValueError(f"{name}: {output}: {messages.read_text()[-1000:]}")

    finish("whole")
    for number in range(kind.kills):
        before, process = kind.pieces(folder / "other"), start("other")
        if number < kind.early:
            time.sleep(rng.uniform(0.5, 5.0))
        else:
            wait_until(lambda before=before: kind.pieces(folder / "other") > before)
            time.sleep(rng.uniform(0.0, 0.1))
        os.kill(process, signal.SIGKILL)
        if forked.wait()[0] == -signal.SIGKILL:
            places.append(kind.pieces(folder / "other"))
    finish("other")
    late = sum(place > 0 for place in places)
    wrong = [
        *kind.differences(folder / "whole", folder / "other"),
        *([f"expected {kind.kills} kills of a working process, got {len(places)}"] if len(places) < kind.kills else []),
        *([f"expected 8 kills or more after the first piece, got {late}"] if late < 8 else []),
    ]
    took = time.monotonic() - begin
    return f"| {name} | {len(places)} | {late} | {'; '.join(wrong[:3]) or 'equal'} | {took:.0f} s |", wrong


def wait_until(claim: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not claim():
        assert time.monotonic() < end, "nothing was finished"
        time.sleep(0.01)


if __name__ == "__main__":
    with Forked() as processes:
        for kind_name in sys.argv[1:] or KINDS:
            with tempfile.TemporaryDirectory() as place:
                print(tried(kind_name, pathlib.Path(place), processes)[0], flush=True)
