"""The weights of an exported model are read once before it is served: one with NaN would answer every request with nothing."""

import os

import numpy as np
import tensorflow as tf

VARIABLES = os.path.join("variables", "variables")  # in a SavedModel


def check_weights(folder: str) -> None:
    """Raises ValueError, naming the first, for weights of a SavedModel that are NaN. Infinity may be meant: a mask, a bound.

    Raises what TensorFlow raises for damaged files.
    """
    if not os.path.exists(f"{(prefix := os.path.join(folder, VARIABLES))}.index"):
        return  # all of them are constants of the graph
    reader = tf.train.load_checkpoint(prefix)
    for name, dtype in sorted(reader.get_variable_to_dtype_map().items()):
        if dtype.is_floating and (bad := int(np.isnan(values := reader.get_tensor(name)).sum())):
            raise ValueError(f"{folder}: {name.removesuffix('/.ATTRIBUTES/VARIABLE_VALUE')}: expected numbers, got {bad:,} of "
                             f"{values.size:,} NaN: the training of this model has diverged, or the file is damaged")
