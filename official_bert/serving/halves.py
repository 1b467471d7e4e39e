"""Cuts the graph of an answer in two around its model, so that another runtime can compute that: `serve --engine`.

`prepare` makes the model's rows of a request, `finish` the answer of the model's outputs for them. Both are cut out of the graph that
a SavedModel has anyway, whatever its head does before and after the model, so their composition is its answer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from official_bert.runtimes.split_signature import FINISH, LENGTHS, ORDER, OUTPUT, PREPARE, ROWS, SIZES, STATE, WHOLE, half_name
from official_bert.serving.bounds import group_sizes
from official_bert.serving.served_model import ID_INPUTS, ServedModel, Tensors


class _Cut:
    """Stands for a served model's engine while a graph is traced: keeps the rows that it gets, and gives placeholders for its outputs."""

    def __init__(self, outputs: Mapping[str, tf.TensorSpec]):
        self._specs = outputs
        self.rows: Tensors | None = None
        self.outputs: dict[str, tf.Tensor] = {}
        self.groups: dict[str, tf.Tensor] = {}

    def __call__(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        assert self.rows is None, "a request's rows go through the model once"
        self.rows = {name: tf.identity(value) for name, value in inputs.items()}
        self.outputs = {name: tf.compat.v1.placeholder(spec.dtype, spec.shape) for name, spec in self._specs.items()}
        return self.outputs

    def group(self, compute: Callable, lengths: tf.Tensor, tokens_at_once: int, results: Mapping) -> tuple[Tensors, tf.Tensor]:
        """Takes the place of `in_groups`: all rows are one group here, and the groups are told to the engine."""
        del results
        order, sizes = group_sizes(lengths, tokens_at_once)
        self.groups = {ORDER: order, SIZES: sizes, LENGTHS: lengths}
        every = tf.range(tf.size(lengths))
        return compute(every), every


def halves(served: ServedModel, answer: Callable[..., Tensors], inputs: Mapping[str, tf.TensorSpec],
           outputs: Mapping[str, tf.TensorSpec]) -> tuple[ConcreteFunction, ConcreteFunction]:
    """Returns `prepare` and `finish` of a function `answer(**inputs)` of a served model, whose own computation has `outputs`.

    `prepare` takes `inputs` and gives `rows_NAME` or `whole_NAME`, the inputs of the model, for the groups that `order` [R], `sizes` [G]
    and `lengths` [R] say (`bounds.group_sizes`), and `state_NUMBER`. `finish` takes the state and `output_NAME`, and gives the answer.
    """
    cut, names = _Cut(outputs), list(inputs)

    def trace(*values: tf.Tensor) -> Tensors:
        return answer(**dict(zip(names, values)))
    served.engine, served.group = cut, cut.group
    try:
        whole = tf.compat.v1.wrap_function(trace, [inputs[name] for name in names])
    finally:
        del served.group, served.engine
    assert cut.rows is not None, "the answer does not need the model"
    answers, given = dict(whole.structured_outputs), dict(zip(names, whole.inputs))
    crossing = _crossing(whole.graph, given.values(), cut.outputs.values(), answers)
    state = {f"{STATE}{number}": value for number, value in enumerate(crossing)}
    made = {**{(ROWS if name in ID_INPUTS else WHOLE) + name: value for name, value in cut.rows.items()}, **cut.groups, **state}
    return (_part(whole, given, made),
            _part(whole, {**state, **{OUTPUT + name: value for name, value in cut.outputs.items()}}, answers, checks=False))


def half_signatures(served: ServedModel, answers: Mapping[str, Callable[..., Tensors]],
                    inputs: Mapping[str, tf.TensorSpec]) -> dict[str, ConcreteFunction]:
    """Returns the halves of a served model's signatures by their names; `answers` are what these compute, of the same `inputs`."""
    model = tf.function(lambda **rows: served.call_dense(rows), autograph=False).get_concrete_function(**served.ids_inputs)
    outputs = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in model.structured_outputs.items()}
    signatures: dict[str, ConcreteFunction] = {}
    for name, answer in answers.items():
        signatures[half_name(PREPARE, name)], signatures[half_name(FINISH, name)] = halves(served, answer, inputs, outputs)
    return signatures


def _part(whole: Any, given: Tensors, wanted: Tensors, checks: bool = True) -> ConcreteFunction:
    """Returns the part of a traced function's graph between tensors as a function of these, by name, as signatures are.

    Of those that are `given`, it takes the ones that are needed. Without `checks`, it waits for nothing else: it was checked before.
    """
    feeds = {value.name: name for name, value in given.items()}
    computed = {name: value.name for name, value in wanted.items() if value.name not in feeds}
    nodes, taken, waiting = set[str](), set[str](), [value for name, value in wanted.items() if name in computed]
    while waiting:
        tensor = waiting.pop()
        if tensor.name in feeds:
            taken.add(tensor.name)
        elif tensor.op.name not in nodes:
            nodes.add(tensor.op.name)
            before = [tensor.op, *tensor.op.control_inputs] if checks else [tensor.op]
            nodes |= {operation.name for operation in before}
            waiting += [value for operation in before for value in operation.inputs]
    definition = whole.graph.as_graph_def()
    kept = [node for node in definition.node if node.name in nodes]
    del definition.node[:]
    for node in kept:
        inputs = [name for name in node.input if not name.startswith("^") or name[1:] in nodes]
        definition.node.add().CopyFrom(node)
        definition.node[-1].input[:] = inputs
    passed = {name: feeds[value.name] for name, value in wanted.items() if name not in computed}

    def run(**values: tf.Tensor) -> dict[str, tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        inputs = {tensor: values[feeds[tensor]] for tensor in taken}
        captured = {inner.name: graph.capture(outer) for outer, inner in whole.graph.captures if inner.op.name in nodes}
        results = tf.graph_util.import_graph_def(definition, {**inputs, **captured}, [*computed.values()], name="")
        return {**dict(zip(computed, results)), **{name: tf.identity(values[key]) for name, key in passed.items()}}
    read = {*(feeds[tensor] for tensor in taken), *passed.values()}
    specs = {name: tf.TensorSpec(value.shape, value.dtype, name) for name, value in given.items() if name in read}
    return tf.function(run, autograph=False).get_concrete_function(**specs)


def _crossing(graph: tf.Graph, inputs: Iterable[tf.Tensor], outputs: Iterable[tf.Tensor], answers: Tensors) -> list[tf.Tensor]:
    """Returns the tensors that depend on `inputs` but not on the model's `outputs`, and are needed behind the model for `answers`."""
    after, before = _dependents(graph, outputs), _dependents(graph, inputs)
    crossing, visited, waiting = dict[str, tf.Tensor](), set[str](), list(answers.values())
    while waiting:
        tensor = waiting.pop()
        if tensor.op.name in before and tensor.op.name not in after:
            crossing[tensor.name] = tensor
        elif tensor.op.name not in visited:
            visited.add(tensor.op.name)
            waiting += tensor.op.inputs
    return list(crossing.values())


def _dependents(graph: tf.Graph, tensors: Iterable[tf.Tensor]) -> set[str]:
    """Returns the names of the operations that depend on tensors, those that make these included."""
    names = {tensor.op.name for tensor in tensors}
    for operation in graph.get_operations():  # in the order in which they were made: inputs before those who take them
        if any(tensor.op.name in names for tensor in operation.inputs):
            names.add(operation.name)
    return names
