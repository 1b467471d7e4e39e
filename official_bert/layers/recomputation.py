"""Activation checkpointing: a computation keeps its inputs only, and the backward pass does it again."""

from collections.abc import Callable, Sequence

import keras
from keras import ops


def recomputed(function: Callable, weights: Sequence, sites: Sequence, *tensors):
    """function(*tensors) for a backward pass that runs `function` again instead of keeping what it made in between.

    Weights are arguments because gradients flow only to arguments, and because `stateless_call` has withdrawn its values when the
    backward pass runs. Dropout gets the seeds of the first pass, because its generators, whose states are `sites`, have advanced by then.
    """
    seeds = [ops.convert_to_tensor(site.value) for site in sites]
    for site, seed in zip(sites, seeds):
        site.assign(seed + ops.convert_to_tensor([0, 1], dtype=seed.dtype))  # as the generator itself does

    def run(*values):
        given, values_of_weights = values[:len(tensors)], values[len(tensors):]
        with keras.StatelessScope(state_mapping=[*zip(weights, values_of_weights), *zip(sites, seeds)]):
            return function(*given)
    return keras.remat(run)(*tensors, *[ops.convert_to_tensor(weight.value) for weight in weights])
