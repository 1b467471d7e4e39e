"""Splits a SavedModel's signatures into the parts before and after the model, so that another runtime can compute the
model: `serve --engine`.

`prepare` turns a request into rows for the model, `finish` the model's outputs into the answer. Both are cut out of the
SavedModel's own graph, for any head, so together with the model they give the same answer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from official_bert.runtimes.split_names import (
    FINISH,
    LENGTHS,
    ORDER,
    OUTPUT,
    PREPARE,
    ROWS,
    SIZES,
    STATE,
    WHOLE,
    part_name,
)
from official_bert.serving.bounds import group_sizes
from official_bert.serving.served_model import ID_INPUTS, ServedModel, Tensors


class _Engine:
    """Replaces a served model's engine while a graph is traced: records the rows that it gets, and returns placeholders
    for its outputs.
    """

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

    def group(
        self, compute: Callable, lengths: tf.Tensor, tokens_at_once: int, results: Mapping
    ) -> tuple[Tensors, tf.Tensor]:
        """Replaces `in_groups`: computes all rows as one group, and records the groups for the engine."""
        del results
        order, sizes = group_sizes(lengths, tokens_at_once)
        self.groups = {ORDER: order, SIZES: sizes, LENGTHS: lengths}
        every = tf.range(tf.size(lengths))
        return compute(every), every


def split_signatures(
    served: ServedModel, answers: Mapping[str, Callable[..., Tensors]], inputs: Mapping[str, tf.TensorSpec]
) -> dict[str, ConcreteFunction]:
    """Returns both parts of a served model's signatures by name.

    `answers` are the functions of the signatures, of the same `inputs`.
    """
    model = tf.function(lambda **rows: served.call_dense(rows), autograph=False)
    model = model.get_concrete_function(**served.ids_inputs)
    outputs = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in model.structured_outputs.items()}
    signatures: dict[str, ConcreteFunction] = {}
    for name, answer in answers.items():
        parts = _split(served, answer, inputs, outputs)
        signatures |= {part_name(part, name): function for part, function in zip((PREPARE, FINISH), parts)}
    return signatures


def _split(
    served: ServedModel,
    answer: Callable[..., Tensors],
    inputs: Mapping[str, tf.TensorSpec],
    outputs: Mapping[str, tf.TensorSpec],
) -> tuple[ConcreteFunction, ConcreteFunction]:
    """Returns `prepare` and `finish` of a function `answer(**inputs)` of a served model that computes `outputs`.

    `prepare` takes `inputs` and returns the model's inputs (`rows_NAME` or `whole_NAME`), the groups in which to
    compute them (`order` [R], `sizes` [G], `lengths` [R]; `bounds.group_sizes`), and `state_NUMBER`. `finish` takes the
    state and `output_NAME`, and returns the answer.
    """
    served.engine = engine = _Engine(outputs)
    served.group = engine.group
    try:
        whole = tf.compat.v1.wrap_function(lambda values: answer(**values), [dict(inputs)])
    finally:
        del served.group, served.engine
    assert engine.rows is not None, "the answer does not need the model"
    request, answers = dict(zip(sorted(inputs), whole.inputs)), dict(whole.structured_outputs)
    after, before = _dependents(whole.graph, engine.outputs.values()), _dependents(whole.graph, request.values())
    # Behind the model, the answer also needs tensors that depend on the request but not on the model.
    crossing, _ = _sources(answers.values(), lambda tensor: tensor.op.name in before and tensor.op.name not in after)
    state = {f"{STATE}{number}": value for number, value in enumerate(crossing.values())}
    rows = {(ROWS if name in ID_INPUTS else WHOLE) + name: value for name, value in engine.rows.items()}
    computed = {OUTPUT + name: value for name, value in engine.outputs.items()}
    prepare = _part(whole, request, {**rows, **engine.groups, **state})
    return prepare, _part(whole, {**state, **computed}, answers, checks=False)


def _part(whole: Any, inputs: Tensors, outputs: Tensors, checks: bool = True) -> ConcreteFunction:
    """Returns the part of a traced function's graph between named tensors, as a function of those `inputs` that it
    needs.

    Without `checks`, control dependencies are left out, because `prepare` has checked the request.
    """
    names = {value.name: name for name, value in inputs.items()}
    passed = {name: names[value.name] for name, value in outputs.items() if value.name in names}
    computed = {name: value for name, value in outputs.items() if name not in passed}
    taken, nodes = _sources(computed.values(), lambda tensor: tensor.name in names, checks)
    definition = whole.graph.as_graph_def()
    kept = [node for node in definition.node if node.name in nodes]
    for node in kept:
        node.input[:] = [name for name in node.input if not name.startswith("^") or name[1:] in nodes]
    del definition.node[:]
    definition.node.extend(kept)

    def run(**values: tf.Tensor) -> dict[str, tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        feeds = {tensor: values[names[tensor]] for tensor in taken}
        feeds |= {inner.name: graph.capture(outer) for outer, inner in whole.graph.captures if inner.op.name in nodes}
        tensors = [value.name for value in computed.values()]
        results = dict(zip(computed, tf.graph_util.import_graph_def(definition, feeds, tensors, name="")))
        return {**results, **{name: tf.identity(values[key]) for name, key in passed.items()}}

    needed = {names[tensor] for tensor in taken} | {*passed.values()}
    specs = {name: tf.TensorSpec(value.shape, value.dtype, name) for name, value in inputs.items() if name in needed}
    return tf.function(run, autograph=False).get_concrete_function(**specs)


def _sources(
    tensors: Iterable[tf.Tensor], is_border: Callable[[tf.Tensor], bool], checks: bool = False
) -> tuple[dict[str, tf.Tensor], set[str]]:
    """Walks from tensors to their inputs: returns the tensors at a border by name, and the names of the operations on
    the way.

    With `checks`, control dependencies are among the operations.
    """
    border, nodes, waiting = dict[str, tf.Tensor](), set[str](), list(tensors)
    while waiting:
        tensor = waiting.pop()
        if is_border(tensor):
            border[tensor.name] = tensor
        elif tensor.op.name not in nodes:
            operations = [tensor.op, *(tensor.op.control_inputs if checks else ())]
            nodes |= {operation.name for operation in operations}
            waiting += [value for operation in operations for value in operation.inputs]
    return border, nodes


def _dependents(graph: tf.Graph, tensors: Iterable[tf.Tensor]) -> set[str]:
    """Returns the names of the operations that depend on tensors, and of those that make them."""
    names = {tensor.op.name for tensor in tensors}
    for operation in graph.get_operations():  # in the order in which they were made: inputs before those who take them
        if any(tensor.op.name in names for tensor in operation.inputs):
            names.add(operation.name)
    return names
