"""What TensorFlow computes faster than a chain of `keras.ops` does; on other backends, that chain."""

import keras
from keras import ops

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
if ON_TENSORFLOW:
    import tensorflow as tf


def product_with_rows(x, table):
    """x [M,D], table [V,D] -> [M,V]. In TensorFlow, the gradient of the table then needs no transpose."""
    return tf.matmul(x, table, transpose_b=True) if ON_TENSORFLOW else ops.matmul(x, ops.transpose(table))
