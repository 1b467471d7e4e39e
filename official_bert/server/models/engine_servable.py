"""Lets ONNX Runtime, LiteRT or OpenVINO compute the model inside a SavedModel: `--engine`.

`run_export --format=saved_model,onnx` writes models/NAME/onnx/VERSION beside models/NAME/text/VERSION. It splits each
signature of the SavedModel in two: `prepare` turns a request into rows of ids and says which rows are computed
together, and `finish` turns the model's outputs into the answer. So the code here is the same for every task.
"""

import dataclasses
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.runtimes.comparison import difference
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
from official_bert.server.statuses import RequestError
from official_bert.server.tensors import Arrays, TensorSpec
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
    """Runs a signature in three steps: `prepare`, the engine, `finish`."""

    prepare: Signature
    finish: Signature
    engine: PortableModel

    def __call__(self, inputs: Arrays, deadline: float | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs of the signature.

        Raises RequestError as `Signature.run` does, also between two groups of rows if the deadline has passed.
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
    """Makes an engine compute a version's split signatures if its outputs equal the SavedModel's; returns a line about
    it.

    Raises ValueError as `load_runs` does.
    """
    runs, largest = load_runs(servable, folder, engine, threads, bound)
    for name, run in runs.items():
        servable.signatures[name].computed_by = run
    return f"{', '.join(runs)} by {engine}, within {largest:.1e} of the SavedModel"


def folder_of_engine(folder: str, engine: str) -> str:
    """Returns the folder of an engine's model: models/NAME/ENGINE/VERSION for models/NAME/text/VERSION."""
    return os.path.join(folder_of(folder_of(folder)), engine, os.path.basename(folder))


def load_runs(
    servable: Servable, folder: str, engine: str, threads: int = 0, bound: float = BOUND
) -> tuple[dict[str, EngineRun], float]:
    """Returns an engine's run of each split signature of a version, and its largest difference from the SavedModel.

    Raises ValueError if the engine has no folder, its runtime is not installed, no signature is split, or an output
    differs by more than `bound` (for reduced precision, the bound that `run_export` wrote).
    """
    engine_folder = folder_of_engine(folder, engine)
    where = f"--engine={engine}"
    folder_here = servable.fetch(engine_folder)
    if not os.path.isfile(os.path.join(folder_here, FILE)):
        raise ValueError(
            f"{where}: expected {engine_folder}, which run_export --format=saved_model,{engine} writes beside "
            f"{folder}, got no such folder; run_export says why it cannot write one for this model"
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
            largest = max(largest, _check(signature, runs[name], description, f"{engine_folder}: {where}", bound))
    return runs, largest


def _check(signature: Signature, run: EngineRun, description: Mapping[str, Any], where: str, bound: float) -> float:
    """Returns the largest difference between the SavedModel's outputs and the engine's.

    Raises ValueError that begins with `where` if it is above `bound`, or above the bound that `run_export` wrote for
    reduced precision.
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
            found = difference(name, expected, computed, bound, is_exact)
            largest = max(largest, found)
            if not found <= bound:  # NaN is not
                raise ValueError(
                    f"{where}: expected the answers of the SavedModel within {bound:g}, got {name} with a difference "
                    f"of {found:.2g} for {len(value)} rows; without --engine the SavedModel itself answers"
                )
    return largest


def sample_request(
    inputs: Mapping[str, TensorSpec], limits: Mapping[str, int], rows: int, length: int
) -> dict[str, np.ndarray]:
    """Returns a request for a signature: texts, or ids of a length."""
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
