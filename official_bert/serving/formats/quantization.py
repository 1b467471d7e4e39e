"""Quantizes the products of an exported file to integers with nncf. A user's texts calibrate the ranges of activations.

Weights have a scale per column; activations have one scale per tensor. Large columns of activations are scaled down,
and their weights up (SmoothQuant). The mean error is corrected in the biases.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.runtimes.engines import Arrays, PortableModel
from official_bert.runtimes.quiet import hidden_output
from official_bert.serving.formats.checking import answers_of
from official_bert.serving.formats.dense import installed
from official_bert.serving.served_model import ServedModel

MOST_ROWS = 300  # nncf's own choice


class Recorder(PortableModel):
    """An engine that records its inputs."""

    def __init__(self, engine: PortableModel):
        self.engine, self.rows = engine, list[Arrays]()

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Returns the engine's outputs for at least one row."""
        self.rows.append(inputs)
        return self.engine.run(inputs)


def recorded_rows(
    served: ServedModel, engine: PortableModel, description: Mapping[str, Any], texts: Sequence[Mapping[str, Any]]
) -> list[Arrays]:
    """Returns the rows of ids that an engine receives for texts, one text at a time so that there is no padding."""
    answers_of(served, texts[:MOST_ROWS], recorder := Recorder(engine), description, at_once=1)
    return recorder.rows


def quantize(form: str, path: str, rows: Sequence[Arrays], where: str, has_distances: bool) -> None:
    """Quantizes a float32 file in place. Raises ValueError that begins with `where` if nncf is not installed.

    With `has_distances` (DeBERTa), products of tokens stay float32 in ONNX Runtime, which has no integer product for
    tables of distances.
    """
    with installed(where, "int8"), hidden_output():
        import nncf
    options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(rows)}
    if has_distances and form == "onnx_int8":
        options["ignored_scope"] = nncf.IgnoredScope(patterns=[r".*/attention(_\d+)?/MatMul(_\d+)?"])
    with hidden_output():
        if form == "onnx_int8":
            import onnx

            onnx.save(nncf.quantize(onnx.load(path), nncf.Dataset(rows), **options), path)
        else:
            import openvino

            core = openvino.Core()
            core.set_property({"ENABLE_MMAP": False})  # the file that is read is written then
            model = nncf.quantize(core.read_model(path), nncf.Dataset(rows), **options)
            openvino.save_model(model, path, compress_to_fp16=False)
