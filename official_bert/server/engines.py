"""ONNX Runtime, LiteRT or OpenVINO in the place of a SavedModel's own model: `--engine`.

`run_export --format=saved_model,onnx` writes models/NAME/onnx/VERSION beside models/NAME/text/VERSION, and cuts the
signatures of the SavedModel in two: `prepare` gives the model's rows of ids, `finish` the answer of its outputs.
Nothing here knows what a row means: the SavedModel also says in which groups rows are computed.
"""

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from official_bert.copies import local_copy
from official_bert.files import folder_of
from official_bert.runtimes.engines import FILE, PortableModel, load_engine
from official_bert.runtimes.split_signature import (
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
from official_bert.server.batching import join
from official_bert.server.reading.tensors import Arrays, TensorSpec
from official_bert.server.servable import Servable, Signature
from official_bert.server.statuses import RequestError

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


def use_engine(servable: Servable, folder: str, engine: str, threads: int = 0) -> str:
    """Lets an engine compute a version's split signatures, once its answers are the SavedModel's; returns the
    difference.

    `folder` is the version's, models/NAME/text/VERSION, beside which models/NAME/ENGINE/VERSION is.

    Raises ValueError if there is no such folder, its runtime is not installed, no signature is split, or an answer
    differs.
    """
    engine_folder = os.path.join(folder_of(folder_of(folder)), engine, os.path.basename(folder))
    where = f"--engine={engine}"
    if (folder_here := local_copy(engine_folder)) != engine_folder:
        servable.copies.append(folder_here)
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
    largest, computed = 0.0, []
    for name, signature in servable.signatures.items():
        if part_name(PREPARE, name) in servable.split_signatures:
            prepare, finish = (servable.split_signatures[part_name(part, name)] for part in (PREPARE, FINISH))
            run = EngineRun(prepare, finish, model)
            largest = max(largest, _check(signature, run, description, f"{engine_folder}: {where}"))
            signature.computed_by = run
            computed.append(name)
    return f"{', '.join(computed)} by {engine}, within {largest:.1e} of the SavedModel"


def _check(signature: Signature, run: EngineRun, description: Mapping[str, Any], where: str) -> float:
    """Returns the largest difference between the SavedModel's answers and the engine's.

    Raises ValueError, naming `where`, beyond `BOUND`, or the bound that `run_export` wrote for less precision.
    """
    largest, bound = 0.0, description.get("bound", BOUND)
    for inputs in _samples(signature.inputs, description["limits"]):
        try:
            expected = signature.run_graph(inputs)
        except RequestError:  # beyond a limit of this model
            continue
        computed = run(inputs)
        for name, value in expected.items():
            difference = _difference(name, expected, computed, bound)
            largest = max(largest, difference)
            if not difference <= bound:  # NaN is not
                raise ValueError(
                    f"{where}: expected the answers of the SavedModel within {bound:g}, got {name} with a difference "
                    f"of {difference:.2g} for {len(value)} rows; without --engine the SavedModel itself answers"
                )
    return largest


def _difference(name: str, expected: Arrays, computed: Arrays, bound: float) -> float:
    """Returns how much an output differs, in parts of its largest number if that is above 1.

    That is infinity for other values that are no numbers, unless two numbers beside them are so near that either may
    stand first. With less precision than float32, labels and the like may differ: `run_export` has judged them.
    """
    value, computed_value, is_exact = expected[name], computed[name], bound <= BOUND
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


def _samples(inputs: Mapping[str, TensorSpec], limits: Mapping[str, int]) -> Iterator[dict[str, np.ndarray]]:
    """Makes requests for a signature of texts or of ids: a short one, and some of several lengths."""
    draw = np.random.default_rng(0)
    longest = min(limits["max_seq_length"], 64)
    below = {
        "input_ids": limits["vocab_size"],
        "segment_ids": max(1, limits["type_vocab_size"]),
        "masked_lm_positions": 3,
    }
    for rows, length in ((1, 3), (3, longest)):
        sample: dict[str, Any] = {}
        for name, spec in inputs.items():
            rank = len(spec.shape or ())
            shape = (rows, 2, length)[:rank] if rank == 3 or spec.dtype == "string" else (rows, length)
            if spec.dtype == "string":
                sample[name] = np.array([text.encode() for text in TEXTS * 2][: int(np.prod(shape))], object).reshape(
                    shape
                )
            else:
                sample[name] = draw.integers(*((0, below[name]) if name in below else (1, 2)), shape).astype(np.int32)
        yield sample
