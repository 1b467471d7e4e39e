"""Chooses the engine that answers one text fastest: `--engine=auto`.

Those that are exported beside a SavedModel and installed take turns with it. The choice is kept on this machine, by the
content of the model's files, the runtimes and the processor, and measured again when one of them is another.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence

from official_bert.runtimes.engines import FILE, FORMS, precision_of
from official_bert.runtimes.processor import processor
from official_bert.server.models.engine_servable import EngineRun, folder_of_engine, load_runs, sample_request
from official_bert.server.models.servable import Servable
from official_bert.server.requests.tensors import Arrays
from official_bert.storage.files import exists, files_below, open_bytes, read_mapping, written_whole

AUTO = "auto"
BOUND = 1e-4  # between an engine's answers and TensorFlow's
TENSORFLOW = "saved_model"
TURNS, SKIPPED = 30, 3  # of one text by each side; the first do not count
TOKENS = 16  # of a row of ids
RUNTIMES = ("tensorflow", "onnxruntime", "ai-edge-litert", "openvino")


def choose_engine(
    servable: Servable, folder: str, threads: int = 0, most_loss: float | None = None, cache_folder: str = ""
) -> list[str]:
    """Lets the fastest engine compute a version's split signatures, or TensorFlow; returns lines that say how it was
    chosen.

    `folder` is the version's, models/NAME/text/VERSION. Formats of less precision take part if they lost at most
    `most_loss` of the answers on the texts that `run_export` judged them by. Without a `cache_folder`, nothing is kept.
    """
    path = os.path.join(cache_folder, f"engine-{_digest(folder, threads, most_loss)}.json") if cache_folder else ""
    try:
        engine = str(read_mapping(path)["engine"])
        runs = {} if engine == TENSORFLOW else load_runs(servable, folder, engine, threads, BOUND)[0]
        lines = [f"--engine=auto takes {engine}, as {path} says"]
    except (KeyError, OSError, ValueError):  # nothing is kept, or what is does not load
        engine, runs, table = _measure(servable, folder, threads, most_loss)
        lines = [*table, f"--engine=auto takes {engine}"]
        if path:
            with contextlib.suppress(OSError), written_whole(path) as file:  # else the next start measures again
                file.write(json.dumps({"engine": engine, "table": table}, indent=1) + "\n")
    for name, run in runs.items():
        servable.signatures[name].computed_by = run
    return lines


def _measure(
    servable: Servable, folder: str, threads: int, most_loss: float | None
) -> tuple[str, dict[str, EngineRun], list[str]]:
    """Returns the fastest engine, what computes each signature by it, and the lines of a table.

    Each engine takes turns with TensorFlow, so that a machine which is slower for a while changes nothing; one beside
    TensorFlow is in memory at a time, and the fastest so far.
    """
    signature, own = servable.signature(""), list[float]()
    fastest: tuple[float, str, dict[str, EngineRun]] = 1.0, TENSORFLOW, {}
    ratios, refusals = dict[str, tuple[float, float]](), dict[str, str]()
    for form in FORMS:
        place = folder_of_engine(folder, form)
        try:
            limits = _limits(place, form, most_loss)
            runs, difference = load_runs(servable, folder, form, threads, BOUND)
        except ValueError as error:
            refusals[form] = str(error)
            continue
        if signature.name in runs:
            request = sample_request(signature.inputs, limits, 1, TOKENS)
            times = _take_turns([signature.run_graph, runs[signature.name]], request)
            own += times[0]
            ratios[form] = statistics.median(times[1]) / statistics.median(times[0]), difference
            fastest = min(fastest, (ratios[form][0], form, runs), key=lambda entry: entry[0])
    base = 1000 * statistics.median(own) if own else 0.0
    table = [f"{processor()}: milliseconds of one text, the largest difference from {TENSORFLOW}"]
    table += [f"{TENSORFLOW}: {base:.2f}"] if own else []
    table += [f"{form}: {ratio * base:.2f}, {difference:.1e}" for form, (ratio, difference) in ratios.items()]
    return fastest[1], fastest[2], table + [f"{form}: not taken: {reason}" for form, reason in refusals.items()]


def _limits(place: str, form: str, most_loss: float | None) -> dict[str, int]:
    """Returns the limits of an engine's model. Raises ValueError if it is not there, or loses too much."""
    if not exists(path := os.path.join(place, FILE)):
        raise ValueError(f"run_export --format=saved_model,{form} writes it")
    description = read_mapping(path)
    loss = description.get("loss")
    if precision_of(form) and not (most_loss is not None and isinstance(loss, float) and loss <= most_loss):
        raise ValueError(
            f"--most_loss admits it if it lost at most so much on run_export's --check_file; "
            f"{'it lost ' + format(loss, '.4f') if isinstance(loss, float) else 'its loss is not recorded'}"
        )
    return description.get("limits", {})


def _take_turns(sides: Sequence[Callable], request: Arrays) -> list[list[float]]:
    """Returns the seconds of each side for a request; they take turns."""
    times = [list[float]() for _ in sides]
    for turn in range(SKIPPED + TURNS):
        for side, seconds in list(zip(sides, times))[:: (-1) ** turn]:
            began = time.perf_counter()
            side(request)
            if turn >= SKIPPED:
                seconds.append(time.perf_counter() - began)
    return times


def _digest(folder: str, threads: int, most_loss: float | None) -> str:
    """Returns the digest of all that the choice depends on."""
    versions = {}
    for name in RUNTIMES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    digest = hashlib.sha256(json.dumps([processor(), threads, most_loss, versions]).encode())
    for place in (folder, *(folder_of_engine(folder, form) for form in FORMS)):
        for path in sorted(files_below(place)) if exists(place) else ():
            with open_bytes(path) as file:
                digest.update(f"\n{path.removeprefix(place)}\n".encode())
                while data := file.read(1 << 20):
                    digest.update(data)
    return digest.hexdigest()
