"""Writes what TensorFlow's graph spells out in the form that runtimes know and compute faster: a layer norm as ONNX's own operation, GELU
with a quotient, and products of rows [B,S,D] without making a matrix of them and rows again.

A part that is not exactly as expected stays as it is; numbers are compared after it (`checking`).
"""

import math
from typing import Any

import numpy as np

LAYER_NORM_OPSET = 17
BY_NUMBER = ("Add", "Sub", "Mul", "Div", "Pow", "Erf", "Tanh", "Relu", "Sigmoid")  # operations on each number by itself
MEANS = ("ReduceMean", "GlobalAveragePool")  # over the last axis of three


class _Graph:
    """The nodes of an ONNX graph by what they give and who takes it."""

    def __init__(self, graph: Any):
        from onnx import numpy_helper
        self.graph = graph
        self.maker = {name: node for node in graph.node for name in node.output}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._to_array = numpy_helper.to_array

    def inputs(self, name: str, kind: str) -> list[str]:
        """Returns the inputs of the node that makes a tensor, if it is of a kind; [] if not."""
        node = self.maker.get(name)
        return list(node.input) if node is not None and node.op_type == kind else []

    def constant(self, name: str) -> np.ndarray | None:
        """Returns the value of a constant."""
        return self._to_array(self._constants[name]) if name in self._constants else None

    def number(self, names: list[str]) -> tuple[str, float] | tuple[None, None]:
        """Returns the input of two that is no number, and the number."""
        for name, other in zip(names, reversed(names)):
            if name in self._constants and (value := self.constant(name)) is not None and value.size == 1:
                return other, float(value.reshape(()))
        return None, None

    def takers(self, name: str) -> list[Any]:
        """Returns the nodes that take a tensor."""
        return [node for node in self.graph.node if name in node.input]

    def leave_out(self, node: Any) -> None:
        """Those that take what a node gives take its first input instead."""
        for taker in self.takers(node.output[0]):
            taker.input[:] = [node.input[0] if name == node.output[0] else name for name in taker.input]

    def add_constant(self, value: np.ndarray) -> str:
        """Returns the name of a constant of this value."""
        from onnx import numpy_helper
        name = "constant_" + "_".join(map(str, value.tolist()))
        if name not in self._constants:
            self.graph.initializer.append(numpy_helper.from_array(value, name))
            self._constants[name] = self.graph.initializer[-1]
        return name

    def mean_of(self, name: str) -> str | None:
        """Returns the tensor whose mean over the last axis another is."""
        node = self.maker.get(name)
        if node is None or node.op_type not in MEANS:
            return None
        axes = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "axes"), [2])
        return node.input[0] if axes == [2] else None

    def shape(self, name: str) -> list[int | None]:
        """Returns what a tensor that is a shape says, None for what is computed; [] if that is not known."""
        if (value := self.constant(name)) is not None:
            return value.tolist()
        if cast := self.inputs(name, "Cast"):
            return self.shape(cast[0])
        parts = [self.constant(part) for part in self.inputs(name, "Concat")]
        is_known = all(part is None or part.shape == (1,) for part in parts)
        return [None if part is None else int(part[0]) for part in parts] if is_known else []


def use_own_operations(model: Any, opset: int) -> None:
    """Changes an ONNX model: each layer norm becomes one operation (from opset 17 on), GELU has x / √2 instead of x times its inverse, and
    rows of layer norms and heads stay rows.
    """
    graph, rows = _Graph(model.graph), list[str]()
    for node in list(model.graph.node):
        if opset >= LAYER_NORM_OPSET and (parts := _layer_norm(graph, node)):
            x, gamma, beta, epsilon = parts
            _replace(node, "LayerNormalization", [x, gamma, beta], axis=-1, epsilon=epsilon)
            rows.append(node.output[0])
        elif activated := _gelu(graph, node):
            _write_gelu(model.graph, node, activated)
    _drop_unused(model.graph)
    graph = _Graph(model.graph)
    for node in [node for node in model.graph.node if node.op_type == "Reshape"]:
        _keep_rows(graph, node, node.input[0] in rows)
    _drop_unused(model.graph)


def _layer_norm(graph: _Graph, node: Any) -> tuple[str, str, str, float] | None:
    """Returns x, gamma, beta and epsilon of the layer norm whose last operation is `node`, (x - mean) * (gamma / deviation) + beta."""
    if node.op_type != "Add":
        return None
    for product, beta in (node.input, reversed(node.input)):
        if (offset := graph.constant(beta)) is None or offset.ndim != 1:
            continue
        for centered, scale in _both_ways(graph.inputs(product, "Mul")):
            if not (difference := graph.inputs(centered, "Sub")) or graph.mean_of(difference[1]) != difference[0]:
                continue
            for inverse, gamma in _both_ways(graph.inputs(scale, "Mul")):
                root = graph.inputs((graph.inputs(inverse, "Reciprocal") or [""])[0], "Sqrt")
                variance, epsilon = graph.number(graph.inputs(root[0], "Add")) if root else (None, None)
                squares = graph.inputs(graph.mean_of(variance or "") or "", "Mul")
                factor = graph.constant(gamma)
                if squares == [centered, centered] and factor is not None and factor.shape == offset.shape:
                    return difference[0], gamma, beta, epsilon or 0.0
    return None


def _gelu(graph: _Graph, node: Any) -> str | None:
    """Returns x of the GELU whose last operation is `node`: (0.5 x) (1 + erf(x √0.5))."""
    if node.op_type != "Mul":
        return None
    for half, other in _both_ways(list(node.input)):
        x, share = graph.number(graph.inputs(half, "Mul"))
        error, one = graph.number(graph.inputs(other, "Add"))
        inner = graph.inputs(error or "", "Erf")
        same, factor = graph.number(graph.inputs(inner[0], "Mul")) if inner else (None, None)
        if x and same == x and share == 0.5 and one == 1.0 and factor is not None and math.isclose(factor, math.sqrt(0.5), rel_tol=1e-6):
            return x
    return None


def _keep_rows(graph: _Graph, start: Any, are_rows: bool) -> None:
    """Leaves out a `Reshape` of rows [B,S,D] to a matrix [B*S,D], and those that make rows or heads of what is computed of it.

    `are_rows`: its input is rows. Heads [B,S,N,H] of a transposition become rows.
    """
    shape = graph.shape(start.input[1])
    heads = graph.maker.get(start.input[0])
    if len(shape) != 2 or shape[0] != -1 or not shape[1] or not (are_rows or (heads is not None and heads.op_type == "Transpose")):
        return
    matrices, done, ends, splits = {start.output[0]}, dict[str, Any](), list[Any](), list[Any]()
    while takers := [node for name in matrices for node in graph.takers(name) if node.output[0] not in done]:
        if not (ready := [node for node in takers if all(name in matrices or graph.constant(name) is not None or node.op_type == "Reshape"
                                                         for name in node.input)]):
            return
        for node in ready:
            done[node.output[0]] = node
            constants = [value for value in map(graph.constant, node.input) if value is not None]
            if node.op_type == "Reshape" and graph.shape(node.input[1])[:2] == [None, None]:
                ends.append(node)
                continue
            if node.op_type == "Split" and _attribute(node, "axis").i == 1:
                splits.append(node)
            elif not (node.op_type == "MatMul" and node.input[0] in matrices and constants and constants[0].ndim == 2) and not (
                    node.op_type in BY_NUMBER and all(value.ndim < 2 for value in constants)):
                return
            matrices |= set(node.output)
    if matrices & {output.name for output in graph.graph.output}:
        return
    for node in splits:
        _attribute(node, "axis").i = 2
    for node in ends:
        if len(kept := graph.shape(node.input[1])[2:]) == 1:
            graph.leave_out(node)
        else:
            node.input[1] = graph.add_constant(np.array([0, 0, *kept], np.int64))
    if are_rows:
        graph.leave_out(start)
    else:
        start.input[1] = graph.add_constant(np.array([0, 0, shape[1]], np.int64))


def _attribute(node: Any, name: str) -> Any:
    return next(attribute for attribute in node.attribute if attribute.name == name)


def _both_ways(names: list[str]) -> list[tuple[str, str]]:
    return [(names[0], names[1]), (names[1], names[0])] if len(names) == 2 else []


def _replace(node: Any, kind: str, inputs: list[str], **attributes: Any) -> None:
    from onnx import helper
    new = helper.make_node(kind, inputs, list(node.output), node.name, **attributes)
    node.CopyFrom(new)


def _write_gelu(graph: Any, node: Any, x: str) -> None:
    """Puts x (1 + erf(x / √2)) 0.5 in front of a node, which becomes its last operation."""
    from onnx import helper, numpy_helper
    names = [f"{node.name}/{part}" for part in ("root", "one", "half", "quotient", "erf", "sum", "product")]
    root, one, half, quotient, erf, total, product = names
    for name, number in ((root, math.sqrt(2.0)), (one, 1.0), (half, 0.5)):
        graph.initializer.append(numpy_helper.from_array(np.float32(number).reshape(()), name))
    made = [helper.make_node("Div", [x, root], [quotient], quotient), helper.make_node("Erf", [quotient], [erf], erf),
            helper.make_node("Add", [erf, one], [total], total), helper.make_node("Mul", [x, total], [product], product)]
    place = next(index for index, other in enumerate(graph.node) if other.name == node.name)
    _replace(node, "Mul", [product, half])
    for new in reversed(made):
        graph.node.insert(place, new)


def _drop_unused(graph: Any) -> None:
    """Removes nodes and constants that nothing needs."""
    needed = {value.name for value in graph.output}
    for place in reversed(range(len(graph.node))):
        if needed & set(graph.node[place].output):
            needed |= set(graph.node[place].input)
        else:
            del graph.node[place]
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in needed:
            del graph.initializer[place]
