"""Runs models in ONNX Runtime (extra `onnx`), LiteRT (`litert`) and OpenVINO (`openvino`).

An engine takes and returns rows of ids and outputs as NumPy arrays by name. `model.json` beside its file describes it.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from google.protobuf.message import Message

from official_bert.runtimes.model_weights import check_litert, check_onnx, check_openvino
from official_bert.runtimes.quiet import hidden_output
from official_bert.storage.files import path_inside, read_mapping

FILE = "model.json"
SECTIONS = ("inputs", "outputs", "limits", "options")
LIMITS = ("vocab_size", "type_vocab_size", "max_seq_length")
TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")  # of tensors
Arrays = Mapping[str, np.ndarray]


class PortableModel:
    """A model of another runtime, called with rows of ids by name; it returns its outputs by name.

    It computes with `threads` threads; 0: one per core. `precisions` lists its precisions beside float32, each the end
    of a format's name (`litert_int8`).
    """

    file: ClassVar[str]
    extra: ClassVar[str]
    precisions: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: str, threads: int = 0, precision: str = ""):
        raise NotImplementedError

    @staticmethod
    def check_weights(path: str, origin: str) -> None:
        """Raises ValueError that names `origin` if a weight in the file is not finite."""
        raise NotImplementedError

    def __call__(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs for any number of rows.

        Without rows, the outputs have no rows. If an input has no columns, as the positions of `[MASK]`, they have no
        columns.
        """
        if all(value.size for value in inputs.values()):
            return self.run(inputs)
        filled = {
            name: value
            if value.size
            else np.full([max(1, size) for size in value.shape], int(name == "input_mask"), np.int32)
            for name, value in inputs.items()
        }
        outputs = self.run(filled)
        has_rows = len(next(iter(inputs.values()))) > 0
        return {name: value[:, :0] if has_rows else value[:0] for name, value in outputs.items()}

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs for at least one row."""
        raise NotImplementedError


class OnnxModel(PortableModel):
    """A model in ONNX Runtime, on CPUs."""

    file = "model.onnx"
    extra = "onnx"
    precisions = ("int8",)
    check_weights = staticmethod(check_onnx)

    def __init__(self, path: str, threads: int = 0, precision: str = ""):
        import onnx
        import onnxruntime

        for name in _external_files(onnx.load(path, load_external_data=False)):
            if not os.path.isfile(path_inside(os.path.dirname(path), name, "external data")):
                raise ValueError(f"external data: {name[:80]!r} is not there")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs for at least one row."""
        return dict(zip(self._outputs, self._session.run(self._outputs, dict(inputs))))


class LiteRTModel(PortableModel):
    """A model in LiteRT. It computes one request at a time, because an interpreter has one set of tensors."""

    file = "model.tflite"
    extra = "litert"
    precisions = ("float16", "int8")
    check_weights = staticmethod(check_litert)

    def __init__(self, path: str, threads: int = 0, precision: str = ""):
        from ai_edge_litert.interpreter import Interpreter

        with hidden_output():  # it tells which kernels it has
            self._interpreter = Interpreter(model_path=path, num_threads=threads or os.cpu_count())
            self._interpreter.allocate_tensors()
        self._signature = self._interpreter.get_signature_runner()
        self._lock = threading.Lock()

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs for at least one row."""
        with self._lock:
            return {name: np.array(value) for name, value in self._signature(**inputs).items()}


class OpenVINOModel(PortableModel):
    """A model in OpenVINO, on CPUs. It computes one request at a time, because an OpenVINO request has one set of
    tensors.

    The precision is set, because OpenVINO chooses bfloat16 by default if the processor has it.
    """

    file = "model.xml"
    extra = "openvino"
    precisions = ("bfloat16", "int8")
    check_weights = staticmethod(check_openvino)
    INSTRUCTIONS: ClassVar[Mapping[str, str]] = {"bfloat16": "BF16", "int8": "INT8"}  # as OpenVINO calls them

    def __init__(self, path: str, threads: int = 0, precision: str = ""):
        import openvino

        core = openvino.Core()
        capabilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if precision and self.INSTRUCTIONS[precision] not in capabilities:
            raise ValueError(
                f"expected a processor with instructions for {precision}, got "
                f"{core.get_property('CPU', 'FULL_DEVICE_NAME')}"
            )
        # what is no product of integers is fastest in bfloat16 too
        has_bfloat16 = precision and "BF16" in capabilities
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if has_bfloat16 else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._request = core.compile_model(path, "CPU", settings).create_infer_request()
        self._lock = threading.Lock()

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs for at least one row."""
        with self._lock:
            results = self._request.infer(dict(inputs))
            # OpenVINO adds names of its own to some
            return {name: np.array(value) for output, value in results.items() for name in output.names}


def _external_files(message: Message) -> Iterator[str]:
    """Yields the names of the external data files of all tensors in an ONNX model."""
    for field, value in message.ListFields():
        if field.name == "external_data":
            yield from (entry.value for entry in value if entry.key == "location")
        elif field.type == field.TYPE_MESSAGE:
            for part in [value] if isinstance(value, Message) else value:
                yield from _external_files(part)


ENGINES: Mapping[str, type[PortableModel]] = {"onnx": OnnxModel, "litert": LiteRTModel, "openvino": OpenVINOModel}
# the formats that they run
FORMS = tuple(
    f"{name}_{precision}".rstrip("_") for name, engine in ENGINES.items() for precision in ("", *engine.precisions)
)


def engine_of(form: str) -> type[PortableModel]:
    """Returns the engine that runs a format such as `litert_int8`."""
    return ENGINES[form.partition("_")[0]]


def precision_of(form: str) -> str:
    """Returns the precision of a format, "" for float32."""
    return form.partition("_")[2]


def load_engine(folder: str, threads: int = 0, origin: str = "") -> tuple[PortableModel, dict[str, Any]]:
    """Loads the model in a folder of this machine that run_export wrote (models/NAME/onnx/1); returns it and its
    description.

    `origin` is the folder that messages name, if `folder` is a copy. Raises ValueError if the runtime is not installed
    or cannot read the file, or if a weight is not finite.
    """
    path = os.path.join(folder, FILE)
    description = read_mapping(path)
    if reason := _fault_of(description):
        raise ValueError(f"{path}: expected the files that run_export writes beside a model: {reason}")
    engine = engine_of(form := description["format"])
    model = start(form, file := os.path.join(folder, engine.file), threads)
    engine.check_weights(file, os.path.join(origin or folder, engine.file))
    return model, description


def _fault_of(description: Mapping[str, Any]) -> str:
    """Returns the first error in a model's description (`model.json`); "" if it is valid."""
    if (form := description.get("format")) not in FORMS:
        return f"format: expected one of {', '.join(FORMS)}, got {str(form)[:60]}"
    for name in SECTIONS:
        if not isinstance(section := description.get(name), dict):
            return f"{name}: expected a mapping, got {str(section)[:60]}"
    for name in LIMITS:
        if type(limit := description["limits"].get(name)) is not int or not 0 <= limit < 1 << 31:
            return f"limits.{name}: expected an integer of at least 0 and below 2^31, got {str(limit)[:60]}"
    if wrong := [name for name in ("bound", "loss") if not _is_amount(description.get(name, 0.0))]:
        return f"{wrong[0]}: expected a number of at least 0, got {str(description[wrong[0]])[:60]}"
    for name in ("inputs", "outputs"):
        for key, spec in description[name].items():
            if not _is_tensor(spec):
                return f"{name}.{key}: expected a type and a shape, got {str(spec)[:60]}"
    return ""


def _is_amount(value: Any) -> bool:
    """Returns whether a value is a finite float of at least 0."""
    return isinstance(value, float) and 0 <= value < float("inf")


def _is_tensor(spec: Any) -> bool:
    """Returns whether a value describes a tensor: [type, sizes], with null for any size."""
    return (
        isinstance(spec, list)
        and len(spec) == 2
        and spec[0] in TYPES
        and isinstance(spec[1], list)
        and all(size is None or (type(size) is int and 0 <= size < 1 << 31) for size in spec[1])
    )


def start(form: str, path: str, threads: int = 0) -> PortableModel:
    """Loads a model of a format and returns it. Raises ValueError if the runtime is not installed, cannot read the
    file, or needs instructions that the processor lacks.
    """
    engine = engine_of(form)
    try:
        return engine(path, threads, precision_of(form))
    except ImportError as error:
        raise ValueError(f"{path}: {error.name} is not installed: install official-bert[{engine.extra}]") from None
    except Exception as error:  # each runtime has exceptions of its own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ValueError(f"{path}: {engine.__name__} cannot read it: {reason}") from None
