"""Chooses the fastest engine for a single text: `--engine=auto`.

Measures the installed engines that were exported beside the SavedModel, in turns with TensorFlow. The choice is cached
on this machine and measured again if the model's files, the runtimes or the processor change.
"""

import contextlib
import os
import statistics

from official_bert.runtimes import comparison
from official_bert.runtimes.engines import FORMS
from official_bert.runtimes.processor import processor
from official_bert.server.models.engine_servable import EngineRun, folder_of_engine, load_runs, sample_request
from official_bert.server.models.servable import Servable
from official_bert.storage.files import read_mapping, write_json

AUTO = "auto"
BOUND = 1e-4  # between an engine's answers and TensorFlow's
TENSORFLOW = "saved_model"
TOKENS = 16  # of a row of ids


def choose_engine(
    servable: Servable, folder: str, threads: int = 0, most_loss: float | None = None, cache_folder: str = ""
) -> list[str]:
    """Makes a version's split signatures run in the fastest engine, or leaves them to TensorFlow; returns lines that
    report the choice.

    `folder` is the version's, models/NAME/text/VERSION. Formats of reduced precision take part if they lost at most
    `most_loss` on the texts with which `run_export` checked them. Without `cache_folder`, the choice is not cached.
    """
    path = ""
    if cache_folder:
        folders = [folder, *(folder_of_engine(folder, form) for form in FORMS)]
        path = os.path.join(cache_folder, f"engine-{comparison.digest_of(folders, threads, most_loss)}.json")
    try:
        engine = str(read_mapping(path)["engine"])
        runs = {} if engine == TENSORFLOW else load_runs(servable, folder, engine, threads, BOUND)[0]
        lines = [f"--engine=auto uses {engine} (from {path})"]
    except (KeyError, OSError, ValueError):  # nothing is kept, or what is does not load
        engine, runs, table = _measure(servable, folder, threads, most_loss)
        lines = [*table, f"--engine=auto uses {engine}"]
        if path:
            with contextlib.suppress(OSError):  # else the next start measures again
                write_json(path, {"engine": engine, "table": table}, "\n", indent=1)
    for name, run in runs.items():
        servable.signatures[name].computed_by = run
    return lines


def _measure(
    servable: Servable, folder: str, threads: int, most_loss: float | None
) -> tuple[str, dict[str, EngineRun], list[str]]:
    """Returns the fastest engine, its run of each signature, and the lines of a table.

    Each engine takes turns with TensorFlow, so that a machine that is slow for a while does not change the order. At
    most one engine, and the fastest so far, are in memory beside TensorFlow.
    """
    signature, own = servable.signature(""), list[float]()
    fastest: tuple[float, str, dict[str, EngineRun]] = 1.0, TENSORFLOW, {}
    ratios, refusals = dict[str, tuple[float, float]](), dict[str, str]()
    for form in FORMS:
        try:
            limits = comparison.admitted_limits(folder_of_engine(folder, form), form, most_loss)
            runs, difference = load_runs(servable, folder, form, threads, BOUND)
        except ValueError as error:
            refusals[form] = str(error)
            continue
        if signature.name in runs:
            request = sample_request(signature.inputs, limits, 1, TOKENS)
            times = comparison.take_turns([signature.run_graph, runs[signature.name]], request)
            own += times[0]
            ratios[form] = statistics.median(times[1]) / statistics.median(times[0]), difference
            fastest = min(fastest, (ratios[form][0], form, runs), key=lambda entry: entry[0])
    base = 1000 * statistics.median(own) if own else 0.0
    table = [f"{processor()}: milliseconds per text, largest difference from {TENSORFLOW}"]
    table += [f"{TENSORFLOW}: {base:.2f}"] if own else []
    table += [f"{form}: {ratio * base:.2f}, {difference:.1e}" for form, (ratio, difference) in ratios.items()]
    return fastest[1], fastest[2], table + [f"{form}: not used: {reason}" for form, reason in refusals.items()]
