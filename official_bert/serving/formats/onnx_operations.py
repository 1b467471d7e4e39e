"""Rewrites an ONNX graph with operations that runtimes compute faster: a layer norm as one operation, GELU with a
division, and products of rows [B,S,D] without reshapes to a matrix and back.

A pattern that does not match exactly stays unchanged. The numbers are compared afterwards (`checking`).
"""

import itertools
import math
from typing import Any

import numpy as np

LAYER_NORM_OPSET = 17
BY_NUMBER = ("Add", "Sub", "Mul", "Div", "Pow", "Erf", "Tanh", "Relu", "Sigmoid")  # operations on each number by itself
MEANS = ("ReduceMean", "GlobalAveragePool")  # over the last axis of three
# An operation (`Mean` for any of `MEANS`) and the patterns of its inputs, a constant number, or a name for any tensor.
Pattern = tuple | float | str
CENTERED = ("Sub", "x", ("Mean", "x"))
VARIANCE = ("Mean", ("Mul", CENTERED, CENTERED))
INVERSE_DEVIATION = ("Reciprocal", ("Sqrt", ("Add", VARIANCE, "epsilon")))
LAYER_NORM = ("Add", ("Mul", CENTERED, ("Mul", INVERSE_DEVIATION, "gamma")), "beta")
GELU = ("Mul", ("Mul", "x", 0.5), ("Add", ("Erf", ("Mul", "x", math.sqrt(0.5))), 1.0))


class _Graph:
    """The nodes of an ONNX graph, indexed by the tensors that they make and take."""

    def __init__(self, graph: Any):
        from onnx import numpy_helper

        self.graph = graph
        self.maker = {name: node for node in graph.node for name in node.output}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._numpy = numpy_helper

    def inputs(self, name: str, kind: str) -> list[str]:
        """Returns the inputs of the node that makes a tensor, if its operation is `kind`; else []."""
        node = self.maker.get(name)
        if node is None or node.op_type not in (MEANS if kind == "Mean" else (kind,)):
            return []
        axes = [list(attribute.ints) for attribute in node.attribute if attribute.name == "axes"]
        return [] if kind == "Mean" and axes not in ([], [[2]]) else list(node.input)

    def constant(self, name: str) -> np.ndarray | None:
        """Returns the value of a constant; None for other tensors."""
        return self._numpy.to_array(self._constants[name]) if name in self._constants else None

    def match(self, tensor: str, pattern: Pattern, named: dict[str, str]) -> dict[str, str] | None:
        """Returns the tensors for the names in a pattern, added to `named`; None if `tensor` is not computed like the
        pattern.
        """
        if isinstance(pattern, str):
            return named | {pattern: tensor} if named.get(pattern, tensor) == tensor else None
        if isinstance(pattern, float):
            value = self.constant(tensor)
            is_number = value is not None and value.size == 1 and math.isclose(value.item(), pattern, rel_tol=1e-6)
            return named if is_number else None
        kind, *parts = pattern
        inputs = self.inputs(tensor, kind)
        for order in itertools.permutations(inputs) if kind in ("Add", "Mul") else [inputs]:
            names: dict[str, str] | None = named if inputs else None
            for name, part in zip(order, parts):
                names = None if names is None else self.match(name, part, names)
            if names is not None:
                return names
        return None

    def takers(self, name: str) -> list[Any]:
        """Returns the nodes that take a tensor."""
        return [node for node in self.graph.node if name in node.input]

    def leave_out(self, node: Any) -> None:
        """Makes the nodes that take a node's output take its first input instead."""
        for taker in self.takers(node.output[0]):
            taker.input[:] = [node.input[0] if name == node.output[0] else name for name in taker.input]

    def add_constant(self, value: np.ndarray) -> str:
        """Returns the name of a constant with this value, which is added to the graph if it is new."""
        name = "constant_" + "_".join(map(str, value.tolist()))
        if name not in self._constants:
            self.graph.initializer.append(self._numpy.from_array(value, name))
            self._constants[name] = self.graph.initializer[-1]
        return name

    def shape(self, name: str) -> list[int | None]:
        """Returns the sizes in a tensor that is a shape, with None for computed sizes; [] if they are not known."""
        if (value := self.constant(name)) is not None:
            return value.tolist()
        if cast := self.inputs(name, "Cast"):
            return self.shape(cast[0])
        parts = [self.constant(part) for part in self.inputs(name, "Concat")]
        is_known = all(part is None or part.shape == (1,) for part in parts)
        return [None if part is None else int(part[0]) for part in parts] if is_known else []


def use_own_operations(model: Any, opset: int) -> None:
    """Rewrites an ONNX model in place: each layer norm becomes one operation (from opset 17 on), GELU divides by √2
    instead of multiplying by its inverse, and rows from layer norms and attention heads are not reshaped to a matrix.
    """
    graph, rows = _Graph(model.graph), list[str]()
    for node in list(model.graph.node):
        if opset >= LAYER_NORM_OPSET and (layer_norm := _layer_norm(graph, node)):
            inputs, epsilon = layer_norm
            _replace(node, "LayerNormalization", inputs, axis=-1, epsilon=epsilon)
            rows.append(node.output[0])
        elif names := graph.match(node.output[0], GELU, {}):
            _write_gelu(model.graph, node, names["x"])
    _drop_unused(model.graph)
    graph = _Graph(model.graph)
    for node in [node for node in model.graph.node if node.op_type == "Reshape"]:
        _keep_rows(graph, node, node.input[0] in rows)
    _drop_unused(model.graph)


def _layer_norm(graph: _Graph, node: Any) -> tuple[list[str], float] | None:
    """Returns ([x, gamma, beta], epsilon) of the layer norm whose last operation is `node`; None if there is none."""
    if (names := graph.match(node.output[0], LAYER_NORM, {})) is None:
        return None
    gamma, beta, epsilon = (graph.constant(names[name]) for name in ("gamma", "beta", "epsilon"))
    if gamma is None or beta is None or epsilon is None or not gamma.ndim == beta.ndim == epsilon.size == 1:
        return None
    return ([names["x"], names["gamma"], names["beta"]], epsilon.item()) if gamma.shape == beta.shape else None


def _keep_rows(graph: _Graph, start: Any, are_rows: bool) -> None:
    """Removes a `Reshape` of rows [B,S,D] to a matrix [B*S,D], and the reshapes of its results back to rows or heads.

    `are_rows` tells that its input is rows; otherwise the heads [B,S,N,H] of a transposition are reshaped to rows.
    """
    shape = graph.shape(start.input[1])
    if len(shape) != 2 or shape[0] != -1 or not shape[1] or not (are_rows or graph.inputs(start.input[0], "Transpose")):
        return
    if (takers := _takers_of_matrix(graph, start.output[0])) is None:
        return
    ends, splits = takers
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


def _takers_of_matrix(graph: _Graph, matrix: str) -> tuple[list[Any], list[Any]] | None:
    """Returns the reshapes back to [B,S,...] that end the computations on a matrix [B*S,D], and the splits before them.

    Returns None if an operation there needs a matrix.
    """
    matrices, done, ends, splits = {matrix}, set[str](), list[Any](), list[Any]()
    while takers := [node for name in matrices for node in graph.takers(name) if node.output[0] not in done]:
        ready = [
            node
            for node in takers
            if node.op_type == "Reshape"
            or all(name in matrices or graph.constant(name) is not None for name in node.input)
        ]
        if not ready:
            return None
        for node in ready:
            done.add(node.output[0])
            if node.op_type == "Reshape" and graph.shape(node.input[1])[:2] == [None, None]:
                ends.append(node)
            elif _takes_rows(graph, node, matrices):
                splits += [node] if node.op_type == "Split" else []
                matrices |= set(node.output)
            else:
                return None
    return None if matrices & {output.name for output in graph.graph.output} else (ends, splits)


def _takes_rows(graph: _Graph, node: Any, matrices: set[str]) -> bool:
    """Returns whether a node computes the same from rows [B,S,D] as from matrices."""
    constants = [value for value in map(graph.constant, node.input) if value is not None]
    if node.op_type == "Split":
        return _attribute(node, "axis").i == 1
    if node.op_type == "MatMul":
        return node.input[0] in matrices and bool(constants) and constants[0].ndim == 2
    return node.op_type in BY_NUMBER and all(value.ndim < 2 for value in constants)


def _attribute(node: Any, name: str) -> Any:
    return next(attribute for attribute in node.attribute if attribute.name == name)


def _replace(node: Any, kind: str, inputs: list[str], **attributes: Any) -> None:
    from onnx import helper

    node.CopyFrom(helper.make_node(kind, inputs, list(node.output), node.name, **attributes))


def _write_gelu(graph: Any, node: Any, x: str) -> None:
    """Inserts x (1 + erf(x / √2)) 0.5 before a node, which becomes its last operation."""
    from onnx import helper, numpy_helper

    root, one, half, quotient, erf, total, product = (
        f"{node.name}/{part}" for part in ("root", "one", "half", "quotient", "erf", "sum", "product")
    )
    for name, number in ((root, math.sqrt(2.0)), (one, 1.0), (half, 0.5)):
        graph.initializer.append(numpy_helper.from_array(np.float32(number).reshape(()), name))
    place = next(index for index, other in enumerate(graph.node) if other.name == node.name)
    _replace(node, "Mul", [product, half])
    for kind, inputs, output in (
        ("Mul", [x, total], product),
        ("Add", [erf, one], total),
        ("Erf", [quotient], erf),
        ("Div", [x, root], quotient),
    ):
        graph.node.insert(place, helper.make_node(kind, inputs, [output], output))


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
