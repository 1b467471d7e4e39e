"""Freezes a served model's computation for rows of ids into one dense pass with constant weights, for other runtimes.

The SavedModels sort rows into groups; a dense pass does not, because that needs loops that collect tensors, which other
runtimes lack. It returns no class names: they are stored beside it (`description`).
"""

import contextlib
import dataclasses
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from official_bert.layers.embeddings import Embeddings
from official_bert.layers.speed.extension_points import original, overridden
from official_bert.models.encoder import BertEncoder
from official_bert.runtimes.quiet import hidden_output
from official_bert.serving.served_layers import Values, served_layers
from official_bert.serving.served_model import ServedModel

# of weights: protocol buffers and flat buffers end at 2 GiB, and hold names and shapes too
MOST_BYTES = (2 << 30) - (64 << 20)


@dataclasses.dataclass(frozen=True)
class Dense:
    """A frozen graph with its named inputs and outputs, in the graph's order."""

    function: tf.types.experimental.ConcreteFunction
    inputs: dict[str, tf.TensorSpec]
    outputs: dict[str, tf.TensorSpec]

    def save(self, folder: str) -> None:
        """Writes the graph as a SavedModel, from which converters read the names of inputs and outputs."""

        @tf.function(autograph=False)
        def by_name(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
            return dict(zip(self.outputs, self.function(*(tensors[name] for name in self.inputs))))

        signatures = {"serving_default": by_name.get_concrete_function(**self.inputs)}
        # a gradient of its own, such as SiLU's, holds tensors of the graph from which this one was frozen
        no_gradients = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(tf.Module(), folder, signatures, no_gradients)


def dense_pass(served: ServedModel, where: str) -> Dense:
    """Returns the dense pass of a served model: the outputs of its `ids` SavedModel, and the model's own outputs.

    Raises ValueError that begins with `where` for a model whose answer needs loops, and for more weights than such a
    file can hold.
    """
    if served.why_not_dense:
        raise ValueError(f"{where}: expected saved_model alone for this model, because {served.why_not_dense}")
    size = sum(variable.value.dtype.size * variable.value.shape.num_elements() for variable in served.model.variables)
    if size > MOST_BYTES:
        raise ValueError(
            f"{where}: expected weights of at most {MOST_BYTES} bytes, which a file of 2 GiB can hold, got {size}"
        )

    @tf.function(autograph=False)
    def compute(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = served.call_dense(inputs)
        numbers = {
            name: value
            for name, value in served.finish_rows(outputs).items()
            # what counts strings that are not there
            if value.dtype != tf.string and name not in served.padded_ids.values()
        }
        return {**outputs, **numbers}

    with portable_layers(served.encoder):
        traced = compute.get_concrete_function(**served.ids_inputs)
        with hidden_output():  # tables of tokenizers that are not part of it cannot be written
            function = convert_variables_to_constants_v2(traced)
    names = [tensor.name.split(":")[0] for tensor in function.inputs]
    outputs = sorted(traced.structured_outputs)  # a graph's are sorted by name
    return Dense(
        function,
        {name: served.ids_inputs[name] for name in names},
        {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in zip(outputs, function.outputs)},
    )


@contextlib.contextmanager
def portable_layers(encoder: BertEncoder) -> Iterator[None]:
    """Makes graphs traced in this context use the operations of `served_layers`, except those that some runtimes
    lack.
    """
    values = Values()
    overrides, _ = served_layers(encoder, values.product, values, tf.float32)
    tables = encoder.embeddings
    if type(tables) is Embeddings:  # Keras' `take` also counts from the end of a table
        read = original(tables, "read")
        overrides[tables, "read"] = lambda name, places: (
            read(name, places)
            if isinstance(places, slice)
            else tf.gather(tf.convert_to_tensor(getattr(tables, name)), places)
        )
    with overridden(overrides):
        yield


@contextlib.contextmanager
def installed(where: str, extra: str) -> Iterator[None]:
    """Turns a missing module into a ValueError that names `where` and the extra that installs it."""
    try:
        yield
    except ImportError as error:
        raise ValueError(f"{where}: {error.name} is not installed: install official-bert[{extra}]") from None
