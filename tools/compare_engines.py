"""Measures an exported model on your texts with every available engine and precision, and recommends one.

    python tools/compare_engines.py models/small --texts=texts.txt
    python tools/compare_engines.py models/small models/small_bfloat16 --texts=texts.csv --report_file=engines.json

The first folder has the SavedModel with which the others are compared, and beside it the files of other runtimes
(run_export --format=saved_model,onnx,openvino). The SavedModels of further folders are measured too, such as exports
with --precision=bfloat16. Each side computes in a process of its own, as the server does, from raw texts to answers.
Each side takes turns with the first: single texts, then all texts in batches. The first turn does not count. Two sides
are in memory at a time.
"""

from official_bert.command_line import run_main

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from absl import flags

from official_bert.runtimes.engines import FILE, FORMS
from official_bert.runtimes.processor import processor
from official_bert.storage.files import exists, write_json

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "texts",
    None,
    "Typical texts, in the forms that run_predict --input_file takes.",
    required=True,
)
flags.DEFINE_integer("singles", 100, "Most texts that are also sent one by one.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Texts in a batch.", lower_bound=1)
flags.DEFINE_integer("rounds", 3, "Turns of each side that count.", lower_bound=1)
flags.DEFINE_integer("threads", 0, "Threads per operation; 0: one per core.", lower_bound=0)
flags.DEFINE_float(
    "most_loss", 0.01, "The share of answers that a recommended side may lose against the first.", 0.0, 1.0
)
flags.DEFINE_string("report_file", "", "Where to write all figures, as JSON.")
COLUMNS = {
    "p50_ms": "one text: p50 (ms)",
    "p99_ms": "p99 (ms)",
    "texts_per_second": "texts/s",
    "memory_mb": "memory (MB)",
    "agreement": "agreement",
}


def main(arguments: list[str]) -> None:
    """Measures all sides, prints a table and the recommendation, and writes the report."""
    from official_bert.interface.model_inputs import ModelInputs
    from official_bert.run_folder import RunFolder

    places, missing = find_sides(arguments[1:])
    if not exists(FLAGS.texts):
        raise ValueError(f"--texts={FLAGS.texts}: no such file")
    with Side("saved_model", *places.pop("saved_model"), FLAGS.threads) as first:
        config = RunFolder(os.path.join(first.folder, "assets")).require_config()
        rows = ModelInputs.of_model(first.inputs, config).read_file(FLAGS.texts)
        if not rows:
            raise ValueError(f"--texts={FLAGS.texts}: expected texts, got none")
        plan = Plan(columns(rows[: FLAGS.singles], 1), columns(rows, FLAGS.batch_size), FLAGS.rounds, FLAGS.threads)
        figures = measure(first, places, plan, missing)
    best = choose(figures, FLAGS.most_loss)
    report = {"processor": processor(), "texts": len(rows), "figures": figures, "take": best, "not_measured": missing}
    print("\n".join(table(report)))
    if FLAGS.report_file:
        write_json(FLAGS.report_file, report, "\n", indent=1, ensure_ascii=False)


def find_sides(folders: Sequence[str]) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Returns the sides by name, each a SavedModel's folder and the format that computes it ("": itself), and the
    reasons why other formats are not measured.

    Raises ValueError for a folder without a SavedModel.
    """
    from official_bert.serving.loading import latest_version

    if not folders:
        raise ValueError("expected a folder that run_export wrote, as in compare_engines.py models/NAME, got none")
    places = dict[str, tuple[str, str]]()
    for folder in folders:
        place = latest_version(os.path.join(folder, "text"))
        places["saved_model" if not places else folder] = place, ""
    first, version = folders[0], os.path.basename(places["saved_model"][0])
    there = [form for form in FORMS if exists(os.path.join(first, form, version, FILE))]
    places |= {form: (places["saved_model"][0], form) for form in there}
    return places, {
        form: f"not in {first}: run_export --format=saved_model,{form} writes it" for form in FORMS if form not in there
    }


class Side:
    """A process that answers texts; `inputs` are those of its model. Raises ValueError if it cannot load the model."""

    def __init__(self, name: str, folder: str, form: str, threads: int):
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=answer_requests, args=(there, folder, form, threads), daemon=True)
        self._process.start()
        there.close()
        self.name, self.folder = name, folder
        reply = self._receive()
        if isinstance(reply, str):
            raise ValueError(reply)
        self.inputs: list[str] = reply

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_: Any) -> None:
        self._connection.close()  # which ends the process
        self._process.join()

    def ask(self, batches: Sequence[Mapping[str, list]]) -> tuple[list[float], list[dict[str, Any]], int]:
        """Returns the seconds for each batch, the answers, and the process' memory in bytes.

        Raises ValueError if the process has ended.
        """
        with contextlib.suppress(OSError):  # the answer tells
            self._connection.send(batches)
        return self._receive()

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise ValueError(
                f"{self.name}: its process has ended, perhaps because memory was short: "
                "two processes hold the model at a time"
            ) from None


def answer_requests(connection: Connection, folder: str, form: str, threads: int) -> None:
    """Answers batches of texts until the other end is closed, like a server that has loaded a version."""
    # hides the warning that the session loader, which TF Serving uses too, is old
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    import tensorflow as tf

    from official_bert.runtimes.quiet import hidden_output
    from official_bert.server.memory import resident, trim
    from official_bert.server.models.engine_servable import use_engine
    from official_bert.server.models.servable import Servable
    from official_bert.serving.formats.checking import rows_of

    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads)
    try:
        with hidden_output():  # plans of TensorFlow's
            servable = Servable("model", 1, folder, config)
            if form:
                use_engine(servable, folder, form, threads)
    except ValueError as error:
        connection.send(str(error))
        return
    signature = servable.signature("")
    connection.send(list(signature.inputs))
    try:
        while True:
            seconds, answers = list[float](), list[dict[str, Any]]()
            for batch in connection.recv():
                arrays = {name: np.vectorize(str.encode, otypes=[object])(values) for name, values in batch.items()}
                began = time.perf_counter()
                outputs = signature.run(arrays)
                seconds.append(time.perf_counter() - began)
                answers += rows_of(outputs)
            trim()
            connection.send((seconds, answers, resident()))
    except EOFError:
        servable.close()


@dataclasses.dataclass(frozen=True)
class Plan:
    """The texts to send one by one and in batches, the number of rounds, and the number of threads."""

    singles: list[dict[str, list]]
    batches: list[dict[str, list]]
    rounds: int
    threads: int


def measure(
    first: Side, places: Mapping[str, tuple[str, str]], plan: Plan, missing: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Returns the figures of the first side and of the others at `places`, by name; adds to `missing` why a side
    failed.

    Only one other side is in memory at a time. Its times are divided by those of the first side in the same turns, and
    multiplied by those of the first side alone, so that a machine that is slower for some minutes does not change the
    order.
    """
    from official_bert.serving.formats.checking import loss_of

    (base,) = take_turns([first], plan)
    figures = {}
    for name, place in {first.name: None, **places}.items():
        reference, side = base, base
        if place:
            try:
                with Side(name, *place, plan.threads) as other:
                    reference, side = take_turns([first, other], plan)
            except ValueError as error:
                missing[name] = str(error)
                continue
        scale = np.median(base.singles) / np.median(reference.singles)
        rate = plan.rounds * len(base.answers) * np.sum(reference.batches) / np.sum(side.batches) / np.sum(base.batches)
        loss, finding = loss_of(base.answers, side.answers)
        figures[name] = {
            "p50_ms": 1000 * float(scale * np.median(side.singles)),
            "p99_ms": 1000 * float(scale * np.percentile(side.singles, 99)),
            "texts_per_second": float(rate),
            "memory_mb": side.memory / 1e6,
            "agreement": 1 - loss,
            "finding": finding,
        }
    return figures


@dataclasses.dataclass
class Measured:
    """Measurements of a side: seconds of single texts and of batches, answers, memory in bytes."""

    singles: list[float] = dataclasses.field(default_factory=list)
    batches: list[float] = dataclasses.field(default_factory=list)
    answers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    memory: int = 0


def take_turns(sides: Sequence[Side], plan: Plan) -> list[Measured]:
    """Measures sides in turns, with single texts and batches. The order of the sides changes with each turn."""
    measured = [Measured() for _ in sides]
    for turn in range(plan.rounds + 1):
        for kind in ("singles", "batches"):
            for side, values in list(zip(sides, measured))[:: (-1) ** turn]:
                seconds, values.answers, values.memory = side.ask(getattr(plan, kind))
                if turn:
                    getattr(values, kind).extend(seconds)
    return measured


def columns(rows: Sequence[Mapping[str, Any]], size: int) -> list[dict[str, list]]:
    """Returns rows in batches, each as a list of values for each input."""
    return [
        {name: [row[name] for row in rows[start : start + size]] for name in rows[0]}
        for start in range(0, len(rows), size)
    ]


def choose(figures: Mapping[str, Mapping[str, Any]], most_loss: float) -> dict[str, str]:
    """Returns the fastest sides for single texts and for batches, among those that lose at most `most_loss` of the
    answers.
    """
    exact = [name for name, values in figures.items() if values["agreement"] >= 1 - most_loss]
    return {
        "single_texts": min(exact, key=lambda name: figures[name]["p50_ms"]),
        "batches": max(exact, key=lambda name: figures[name]["texts_per_second"]),
    }


def table(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of the printed table."""
    yield f"{report['processor']}; {report['texts']} texts"
    yield f"\n| | {' | '.join(COLUMNS.values())} |\n" + "|---" * (len(COLUMNS) + 1) + "|"
    for name, values in report["figures"].items():
        numbers = [f"{values[key]:.4f}" if key == "agreement" else f"{values[key]:,.1f}" for key in COLUMNS]
        yield f"| {name} | {' | '.join(numbers)} |"
    yield ""
    yield from (f"{name} is not measured: {why}" for name, why in report["not_measured"].items())
    for kind, name in report["take"].items():
        how = f": serve --engine={name}" if name in FORMS else ""
        yield f"for {kind.replace('_', ' ')} use {name}{how}"


if __name__ == "__main__":
    run_main(main)
