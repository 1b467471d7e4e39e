"""First values of a model's weights: each variable's is a function of the seed and of its name alone.

Keras gives every initializer one seed, so that tables which share an initializer begin with the same rows, and a layer more or less
changes the values of all layers made after it.
"""

import zlib

import keras

from official_bert.models.encoder import weights_by_name


def draw_first_weights(model: keras.Model, seed: int) -> None:
    """Draws every random weight of a built model anew, by its own initializer with a seed of (`seed`, the variable's name).

    The same values under every strategy. Weights that begin as constants (biases, layer norms, a CRF's scores) stay as they are.
    """
    names = {id(variable): name for name, variable in weights_by_name(model).items()}
    for layer in model._flatten_layers():
        for attribute, initializer in vars(layer).items():
            if not attribute.endswith("_initializer") or "seed" not in (settings := initializer.get_config()):
                continue
            stem = attribute.removesuffix("_initializer")  # of `kernel`, or of an LSTM's `recurrent_kernel`
            variable = getattr(layer, stem, None)
            variable = getattr(layer, f"{stem}_kernel") if variable is None else variable
            own_seed = zlib.crc32(f"{seed}/{names[id(variable)]}".encode()) >> 1  # below 2^31, which every backend takes
            drawn = type(initializer).from_config(settings | {"seed": own_seed})
            variable.assign(drawn(variable.shape, variable.dtype))
