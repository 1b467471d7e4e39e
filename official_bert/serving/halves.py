"""Cuts the graph of an answer in two around its model, so that another runtime can compute that: `serve --engine`.

`prepare` makes the model's rows of a request, `finish` the answer of the model's outputs for them. Both are cut out of the graph that
a SavedModel has anyway, whatever its head does before and after the model, so their composition is its answer.
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from official_bert.runtimes.halves import FINISH, LENGTHS, ORDER, OUTPUT, PREPARE, ROWS, SIZES, STATE, WHOLE, half_name
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
    answers, feeds = dict(whole.structured_outputs), list(whole.inputs[:len(names)])
    state, given = _crossing(whole.graph, feeds, cut.outputs, list(answers.values()))
    made = {**{(ROWS if name in ID_INPUTS else WHOLE) + name: value for name, value in cut.rows.items()}, **cut.groups,
            **{f"{STATE}{number}": value for number, value in enumerate(state)}}
    taken = {**{f"{STATE}{number}": value for number, value in enumerate(state)}, **{OUTPUT + name: value for name, value in given.items()}}
    return (_function(whole.prune(feeds, made), [inputs[name] for name in names], names),
            _function(whole.prune(list(taken.values()), answers), [tf.TensorSpec(value.shape, value.dtype) for value in taken.values()],
                      list(taken)))


def half_signatures(served: ServedModel, answers: Mapping[str, Callable[..., Tensors]],
                    inputs: Mapping[str, tf.TensorSpec]) -> dict[str, ConcreteFunction]:
    """Returns the halves of a served model's signatures by their names; `answers` are what these compute, of the same `inputs`."""
    model = tf.function(lambda **rows: served.call_dense(rows), autograph=False).get_concrete_function(**served.ids_inputs)
    outputs = {name: tf.TensorSpec(value.shape, value.dtype) for name, value in model.structured_outputs.items()}
    signatures: dict[str, ConcreteFunction] = {}
    for name, answer in answers.items():
        signatures[half_name(PREPARE, name)], signatures[half_name(FINISH, name)] = halves(served, answer, inputs, outputs)
    return signatures


def _function(pruned: Callable, specs: Sequence[tf.TensorSpec], names: Sequence[str]) -> ConcreteFunction:
    """Returns a part of a graph as a function of named tensors, as signatures are."""
    return tf.function(lambda **values: pruned(*(values[name] for name in names)), autograph=False).get_concrete_function(
        **{name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in zip(names, specs)})


def _crossing(graph: tf.Graph, inputs: Sequence[tf.Tensor], outputs: Tensors,
              answers: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the tensors that are known without the model's `outputs`, depend on `inputs`, and are needed behind the model for `answers`;
    and those of `outputs` that are needed.
    """
    after, before = _dependents(graph, outputs.values()), _dependents(graph, inputs)
    crossing, needed, waiting = dict[str, tf.Tensor](), set[str](), list(answers)
    while waiting:
        tensor = waiting.pop()
        if tensor.op.name not in after:
            if tensor.op.name in before:
                crossing[tensor.name] = tensor
        elif tensor.op.name not in needed:
            needed.add(tensor.op.name)
            waiting += tensor.op.inputs
    return list(crossing.values()), {name: value for name, value in outputs.items() if value.op.name in needed}


def _dependents(graph: tf.Graph, tensors) -> set[str]:
    """Returns the names of the operations that depend on tensors, those that make these included."""
    names = {tensor.op.name for tensor in tensors}
    for operation in graph.get_operations():  # in the order in which they were made: inputs before those who take them
        if any(tensor.op.name in names for tensor in operation.inputs):
            names.add(operation.name)
    return names
