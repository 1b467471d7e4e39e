"""Activation checkpointing: a computation keeps only its inputs, and the backward pass repeats it."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from official_bert.layers.speed.fused import in_turn


def recomputed(function: Callable, weights: Sequence, sites: Sequence, *tensors: Any) -> Any:
    """Returns function(*tensors); the backward pass runs `function` again instead of keeping intermediate results.

    Weights are arguments because gradients flow only to arguments, and because `stateless_call` has withdrawn its
    values when the backward pass runs. Dropout gets the seeds of the first pass, because its generators, whose states
    are `sites`, have advanced by then.
    """
    seeds = [ops.convert_to_tensor(site.value) for site in sites]
    for site, seed in zip(sites, seeds):
        site.assign(seed + ops.convert_to_tensor([0, 1], dtype=seed.dtype))  # as the generator itself does

    def run(*values: Any) -> Any:
        inputs, values_of_weights = values[: len(tensors)], values[len(tensors) :]
        with keras.StatelessScope(state_mapping=[*zip(weights, values_of_weights), *zip(sites, seeds)]):
            return function(*inputs)

    return keras.remat(run)(*tensors, *[ops.convert_to_tensor(weight.value) for weight in weights])


def recomputed_in_chunks(
    function: Callable, weights: Sequence, sites: Sequence, rows: dict, size: int, width: int
) -> Any:
    """Returns function(rows) [R,width] of rows [R,...] by name, computed for `size` rows at a time without keeping
    activations.

    Memory is therefore that of one chunk, in both passes: with a loss over the results, this is gradient caching (Gao
    et al. 2021). Each chunk has its own dropout. The last chunk is filled up with zeros.
    """
    count = ops.shape(next(iter(rows.values())))[0]
    chunks = (count + size - 1) // size
    cut = {}
    for name, value in rows.items():
        row_shape = ops.shape(value)[1:]
        filled = ops.concatenate([value, ops.zeros((chunks * size - count, *row_shape), value.dtype)])
        cut[name] = ops.reshape(filled, (-1, size, *row_shape))
    seeds = [ops.convert_to_tensor(site.value) for site in sites]
    values_of_weights = [ops.convert_to_tensor(weight.value) for weight in weights]
    for site, seed in zip(sites, seeds):
        site.assign(seed + ops.stack([0, ops.cast(chunks, seed.dtype)]))

    def run_chunk(number: Any) -> Any:
        part = {name: ops.take(value, number, axis=0) for name, value in cut.items()}
        chunk_seeds = [seed + ops.stack([0, ops.cast(number, seed.dtype)]) for seed in seeds]
        # Integers are no arguments: nothing can be learned of them, and TensorFlow would warn of each.
        learned = [
            name
            for name, value in part.items()
            if keras.backend.is_float_dtype(keras.backend.standardize_dtype(value.dtype))
        ]

        def run(*values: Any) -> Any:
            inputs, values_of = dict(zip(learned, values)), values[len(learned) :]
            with keras.StatelessScope(state_mapping=[*zip(weights, values_of), *zip(sites, chunk_seeds)]):
                return function(part | inputs)

        return keras.remat(run)(*(part[name] for name in learned), *values_of_weights)

    return ops.reshape(in_turn(run_chunk, chunks, (size, width)), (-1, width))[:count]
