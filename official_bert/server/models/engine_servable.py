"""ONNX Runtime, LiteRT or OpenVINO in the place of a SavedModel's own model: `--engine`.

`run_export --format=saved_model,onnx` writes models/NAME/onnx/VERSION beside models/NAME/text/VERSION, and cuts the
signatures of the SavedModel in two: `prepare` gives the model's rows of ids, `finish` the answer of its outputs.
Nothing here knows what a row means: the SavedModel also says in which groups rows are computed.
"""

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.runtimes.engines import FILE, PortableModel, load_engine
from official_bert.runtimes.split_names import (
    FINISH,
    LENGTHS,
    ORDER,
    OUTPUT,
    PREPARE,
    ROWS,
    SIZES,
    WHOLE,
    part_name,
)
from official_bert.server.models.servable import Servable, Signature
from official_bert.server.queue.batching import join
from official_bert.server.requests.tensors import Arrays, TensorSpec
from official_bert.server.statuses import RequestError
from official_bert.storage.files import folder_of

# between the SavedModel's numbers and those of an engine in float32; of an output's largest number if that is above 1
BOUND = 1e-5
TEXTS = (
    "a",
    "The quick brown fox, it is said, jumps over the lazy dog.",
    "Zürich lies 3 km from here; in [MASK] it rains. " * 12,
)


@dataclasses.dataclass(frozen=True)
class EngineRun:
    """Answers requests of a signature by the two parts of its split graph and an engine between them."""

    prepare: Signature
    finish: Signature
    engine: PortableModel

    def __call__(self, inputs: Arrays, deadline: float | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs. Raises RequestError as `Signature.run` does; between two groups of rows for a deadline
        that has passed.
        """
        prepared = self.prepare.run(inputs, deadline)
        outputs = self._compute(prepared, deadline)
        return self.finish.run(
            {
                name: outputs[name.removeprefix(OUTPUT)] if name.startswith(OUTPUT) else prepared[name]
                for name in self.finish.inputs
            },
            deadline,
        )

    def _compute(self, prepared: Arrays, deadline: float | None) -> Arrays:
        """Returns the engine's outputs for all rows, group by group."""
        rows = {name.removeprefix(ROWS): value for name, value in prepared.items() if name.startswith(ROWS)}
        whole = {name.removeprefix(WHOLE): value for name, value in prepared.items() if name.startswith(WHOLE)}
        order, sizes = prepared[ORDER], prepared[SIZES].tolist()
        if len(sizes) <= 1:
            return self.engine({**rows, **whole})
        computed, first = [], 0
        for size in sizes:
            if deadline is not None and time.monotonic() > deadline:
                raise RequestError("DEADLINE_EXCEEDED", "Run() timeout exceeded: no answer in time")
            chosen = order[first : first + size]
            first, longest = first + size, int(prepared[LENGTHS][chosen].max())
            computed.append(
                self.engine(
                    {
                        **{name: np.ascontiguousarray(value[chosen][..., :longest]) for name, value in rows.items()},
                        **{name: value[chosen] for name, value in whole.items()},
                    }
                )
            )
        back = np.argsort(order)
        return {name: join([group[name] for group in computed])[back] for name in computed[0]}


def use_engine(servable: Servable, folder: str, engine: str, threads: int = 0, bound: float = BOUND) -> str:
    """Lets an engine compute a version's split signatures, once its answers are the SavedModel's; returns the
    difference. Raises ValueError as `load_runs` does.
    """
    runs, largest = load_runs(servable, folder, engine, threads, bound)
    for name, run in runs.items():
        servable.signatures[name].computed_by = run
    return f"{', '.join(runs)} by {engine}, within {largest:.1e} of the SavedModel"


def folder_of_engine(folder: str, engine: str) -> str:
    """Returns the folder of an engine's file, models/NAME/ENGINE/VERSION beside models/NAME/text/VERSION."""
    return os.path.join(folder_of(folder_of(folder)), engine, os.path.basename(folder))


def load_runs(
    servable: Servable, folder: str, engine: str, threads: int = 0, bound: float = BOUND
) -> tuple[dict[str, EngineRun], float]:
    """Returns what computes each split signature of a version by an engine, and how much its answers differ from the
    SavedModel's.

    Raises ValueError if the engine has no folder, its runtime is not installed, no signature is split, or an answer
    differs by more than `bound`, or than `run_export` says of less precision.
    """
    engine_folder = folder_of_engine(folder, engine)
    where = f"--engine={engine}"
    folder_here = servable.fetch(engine_folder)
    if not os.path.isfile(os.path.join(folder_here, FILE)):
        raise ValueError(
            f"{where}: expected {engine_folder}, which run_export --format=saved_model,{engine} writes beside "
            f"{folder}, got no such folder; models that have no such form are refused there by name"
        )
    if not servable.split_signatures:
        raise ValueError(
            f"{where}: expected a SavedModel with the signatures prepare and finish, which run_export "
            f"--format=saved_model,{engine} writes, got {', '.join(servable.signatures)} in {folder}"
        )
    model, description = load_engine(folder_here, threads, engine_folder)
    largest, runs = 0.0, dict[str, EngineRun]()
    for name, signature in servable.signatures.items():
        if part_name(PREPARE, name) in servable.split_signatures:
            prepare, finish = (servable.split_signatures[part_name(part, name)] for part in (PREPARE, FINISH))
            runs[name] = EngineRun(prepare, finish, model)
            difference = _check(signature, runs[name], description, f"{engine_folder}: {where}", bound)
            largest = max(largest, difference)
    return runs, largest


def _check(signature: Signature, run: EngineRun, description: Mapping[str, Any], where: str, bound: float) -> float:
    """Returns the largest difference between the SavedModel's answers and the engine's.

    Raises ValueError, naming `where`, beyond `bound`, or the one that `run_export` wrote for less precision.
    """
    largest, is_exact, bound = 0.0, "bound" not in description, description.get("bound", bound)
    for rows, length in ((1, 3), (3, min(description["limits"]["max_seq_length"], 64))):
        inputs = sample_request(signature.inputs, description["limits"], rows, length)
        try:
            expected = signature.run_graph(inputs)
        except RequestError:  # beyond a limit of this model
            continue
        computed = run(inputs)
        for name, value in expected.items():
            difference = _difference(name, expected, computed, bound, is_exact)
            largest = max(largest, difference)
            if not difference <= bound:  # NaN is not
                raise ValueError(
                    f"{where}: expected the answers of the SavedModel within {bound:g}, got {name} with a difference "
                    f"of {difference:.2g} for {len(value)} rows; without --engine the SavedModel itself answers"
                )
    return largest


def _difference(name: str, expected: Arrays, computed: Arrays, bound: float, is_exact: bool) -> float:
    """Returns how much an output differs, in parts of its largest number if that is above 1.

    That is infinity for other values that are no numbers, unless two numbers beside them are so near that either may
    stand first. With less precision than float32, labels and the like may differ: `run_export` has judged them.
    """
    value, computed_value = expected[name], computed[name]
    if value.shape != computed_value.shape:
        return np.inf if is_exact else 0.0
    if value.dtype.kind == "f":
        return float(np.abs(value - computed_value).max(initial=0) / np.abs(value).max(initial=1))
    differs = value != computed_value
    for scores in expected.values():
        if scores.dtype.kind == "f" and scores.shape == value.shape and value.ndim > 1 and value.shape[-1] > 1:
            gaps = np.pad(np.abs(np.diff(scores)), [(0, 0)] * (value.ndim - 1) + [(1, 1)], constant_values=np.inf)
            differs &= np.minimum(gaps[..., 1:], gaps[..., :-1]) > 2 * bound
    return np.inf if differs.any() and is_exact else 0.0


def sample_request(
    inputs: Mapping[str, TensorSpec], limits: Mapping[str, int], rows: int, length: int
) -> dict[str, np.ndarray]:
    """Makes a request for a signature of texts, or of ids of a length."""
    draw = np.random.default_rng(0)
    below = {
        "input_ids": limits["vocab_size"],
        "segment_ids": max(1, limits["type_vocab_size"]),
        "masked_lm_positions": 3,
    }
    sample: dict[str, Any] = {}
    for name, spec in inputs.items():
        rank = len(spec.shape or ())
        shape = (rows, 2, length)[:rank] if rank == 3 or spec.dtype == "string" else (rows, length)
        if spec.dtype == "string":
            texts = [text.encode() for text in TEXTS * 2]
            sample[name] = np.array(texts[: int(np.prod(shape))], object).reshape(shape)
        else:
            sample[name] = draw.integers(*((0, below[name]) if name in below else (1, 2)), shape).astype(np.int32)
    return sample
