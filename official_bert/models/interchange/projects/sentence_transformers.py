"""Text vectors in a sentence-transformers folder: its modules, their weights and settings, and its prompts."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from safetensors.numpy import save_file

from official_bert.models.interchange import stored_models
from official_bert.models.interchange.names import Tensors, Weights, with_prefix
from official_bert.models.interchange.stored_models import Fields, Head, StoredModel, Values
from official_bert.models.vector_layers import LAYER_PREFIX, Pooling, Poolings, VectorLayer, poolings_of, vector_width
from official_bert.storage.files import path_inside, read_json, read_mapping

MODULES_FILE, POOLING_FOLDER, CONFIG_FILE, WEIGHTS_FILE = (
    "modules.json",
    "1_Pooling",
    "config.json",
    "model.safetensors",
)
SETTINGS_FILE, LENGTH_FILE = "config_sentence_transformers.json", "sentence_bert_config.json"
TOKENIZER_FILE, NO_LENGTH = "tokenizer_config.json", 10**6  # tokens: a larger number stands for none
PACKAGE, PREFIX = "sentence_transformers.", "sentence_transformers.models."
PROMPTS = {
    "query": ("query", "retrieval.query"),
    "passage": ("document", "passage", "corpus", "retrieval.passage"),
}  # our names, and theirs
# Their order is that of the concatenation, unless `pooling_mode` has one.
MODES: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
KINDS: Mapping[str, Any] = {"Dense": "dense", "LayerNorm": "layer_norm", "Normalize": "normalize"}
COMPUTED = ("Transformer", "Pooling", *KINDS)
# of torch.nn
ACTIVATIONS = {
    "Identity": "linear",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
}
WEIGHTS = {"linear.weight": "kernel", "linear.bias": "bias", "norm.weight": "gamma", "norm.bias": "beta"}
SENTENCE = "sentence_embedding"
ReadTensors = Callable[[str], Tensors]  # of a folder


class _UnsupportedError(Exception):
    """Why vectors are not computed as a folder says."""


def read(folder: str, head: Head, hidden_size: int, read_tensors: ReadTensors) -> tuple[Fields, Tensors]:
    """Returns the fields of `StoredModel` about vectors, and the weights of layers after the pooling; {} and {} for
    other folders.

    For an unsupported module or setting, the field `why_no_vectors` has the reason. A classifier keeps its head,
    whatever other files the folder has. Raises ValueError for damaged files.
    """
    path = os.path.join(folder, MODULES_FILE)
    modules = _modules(path)
    names = [name for name, _ in modules]
    if not modules or head not in ("", "pretraining") or (head and "Pooling" not in names):
        return {}, {}
    try:
        _check_order(names, path)
        fields = _pooling(os.path.join(modules[1][1], CONFIG_FILE)) | _settings(folder)
        layers, weights = list[VectorLayer](), Tensors()
        for number, (name, place) in enumerate(modules[2:]):
            width = vector_width(hidden_size, fields["pooling"], layers)
            layer, tensors = _layer(name, place, width, read_tensors)
            layers.append(layer)
            weights |= {f"{LAYER_PREFIX}{number}/{key}": tensor for key, tensor in tensors.items()}
    except _UnsupportedError as reason:
        return {"why_no_vectors": str(reason)}, {}
    # The first numbers of a vector of length 1 are not scaled again.
    normalize = bool(layers) and layers[-1].kind == "normalize" and not fields["dimensions"]
    return fields | {"vector_layers": layers[:-1] if normalize else layers, "normalize": normalize}, weights


def _check_order(names: Sequence[str], path: str) -> None:
    """Raises _UnsupportedError for modules in another order, or of other classes."""
    if foreign := next((name for name in names if name not in COMPUTED), None):
        raise _UnsupportedError(f"{path}: the module {foreign} is not supported; expected {', '.join(COMPUTED)}")
    if names[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & {*names[2:]}:
        raise _UnsupportedError(
            f"{path}: expected a Transformer, a Pooling and then {', '.join(KINDS)}, got {', '.join(names)}"
        )


def _modules(path: str) -> list[tuple[str, str]]:
    """Returns the class and the folder of each module, in order; [] without `modules.json`. A class of another package
    keeps its full name.
    """
    modules = read_json(path, missing=[], of_model=True)
    if not isinstance(modules, list) or not all(
        isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules
    ):
        raise ValueError(f"{path}: expected a list of modules with type and path, got {str(modules)[:80]}")
    found = []
    for module in modules:
        kind = str(module["type"])
        name = kind.rpartition(".")[2]
        module_folder = path_inside(os.path.dirname(path), module["path"], f"{path}: path")
        found.append((name if kind.startswith(PACKAGE) or kind == name else kind, module_folder))
    return found


def _pooling(path: str) -> Fields:
    """Returns the poolings of the module with this configuration, and whether they include prompts."""
    values = read_mapping(path)
    modes = values.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in MODES.items() if values.get(key)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(mode in get_args(Pooling) for mode in modes):
        raise ValueError(
            f"{path}: pooling_mode: expected one or several of {', '.join(get_args(Pooling))}, got {str(modes)[:80]}"
        )
    include_prompt = values.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise ValueError(f"{path}: include_prompt: expected true or false, got {include_prompt!r:.40}")
    return {"pooling": modes[0] if len(modes) == 1 else tuple(modes), "include_prompt": include_prompt}


def _layer(name: str, folder: str, width: int, read_tensors: ReadTensors) -> tuple[VectorLayer, Tensors]:
    """Returns the layer of a module after vectors of `width` numbers, and its weights by our names.

    Raises _UnsupportedError for a layer that is not supported.
    """
    path = os.path.join(folder, CONFIG_FILE)
    values = read_mapping(path, missing={} if name == "Normalize" else None)
    for key in ("module_input_name", "module_output_name"):
        if (values.get(key) or SENTENCE) != SENTENCE:
            raise _UnsupportedError(
                f"{path}: {key}: expected {SENTENCE}, got {values[key]!r:.60}, which is not supported"
            )
    if values.get("use_residual"):
        raise _UnsupportedError(f"{path}: use_residual: true is not supported")
    if name == "Normalize":
        return VectorLayer(kind="normalize"), {}
    expected: dict[str, tuple[int, ...]] = {"norm.weight": (width,), "norm.bias": (width,)}
    settings = {}
    if name == "Dense":
        settings = _dense_settings(values, width, path)
        units = settings["units"]
        expected = {"linear.weight": (units, width)} | ({"linear.bias": (units,)} if settings["use_bias"] else {})
    tensors = read_tensors(folder)
    shapes = {key: tensor.shape for key, tensor in tensors.items()}
    if shapes != expected:
        raise ValueError(f"{folder}: expected the weights {expected}, got {str(shapes)[:200]}")
    return VectorLayer(kind=KINDS[name], **settings), {
        ours: np.ascontiguousarray(tensors[theirs].T).astype(np.float32, copy=False)
        for theirs, ours in WEIGHTS.items()
        if theirs in tensors
    }


def _dense_settings(values: Values, width: int, path: str) -> Fields:
    """Returns the settings of the dense layer with this configuration."""
    activation = str(values.get("activation_function", "torch.nn.modules.activation.Tanh"))
    ours = ACTIVATIONS.get(activation.rpartition(".")[2])
    if ours is None or not activation.startswith("torch.nn."):
        raise _UnsupportedError(
            f"{path}: activation_function: expected one of torch.nn's {', '.join(ACTIVATIONS)}, got {activation!r:.80}"
        )
    return {
        "units": values.get("out_features", width),
        "activation": ours,
        "use_bias": bool(values.get("bias", True)),
    }


def _settings(folder: str) -> Fields:
    """Returns the prompts, the number of dimensions, and the longest text of a folder."""
    path, length_path, tokenizer_path = (
        os.path.join(folder, name) for name in (SETTINGS_FILE, LENGTH_FILE, TOKENIZER_FILE)
    )
    settings, lengths, tokenizer = (read_mapping(name, missing={}) for name in (path, length_path, tokenizer_path))
    # the latter alone since its version 6
    longest = lengths.get("max_seq_length") or tokenizer.get("model_max_length") or 0
    longest = 0 if isinstance(longest, (int, float)) and longest > NO_LENGTH else longest
    fields = _prompts(settings, path)
    if type(dimensions := settings.get("truncate_dim") or 0) is not int or dimensions < 0:
        raise ValueError(f"{path}: truncate_dim: expected a number of dimensions, got {dimensions!r:.40}")
    if not isinstance(longest, int) or longest < 0:
        raise ValueError(f"{length_path}: max_seq_length: expected a number of tokens, got {str(longest)[:40]}")
    return fields | {"longest_text": longest, "dimensions": dimensions}


def _prompts(settings: Values, path: str) -> Fields:
    """Returns the prompts under our names, and the one that is used by default."""
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise ValueError(f"{path}: prompts: expected texts by name, got {str(prompts)[:80]}")
    if default is not None and (not isinstance(default, str) or default not in {"query": "", "document": ""} | prompts):
        raise ValueError(f"{path}: default_prompt_name: expected one of {', '.join(prompts)}, got {default!r:.60}")
    ours = {side: next((prompts[name] for name in names if prompts.get(name)), "") for side, names in PROMPTS.items()}
    return {
        "prompts": {
            name: prompt
            for name, prompt in (prompts | ours).items()
            if name != "document" and (prompt or name not in PROMPTS)
        },
        "default_prompt": prompts.get(default, "") if default else "",
    }


def write_modules(stored: StoredModel, width: int, folder: str) -> None:
    """Writes the files from which sentence-transformers computes our vectors. `width` is the encoder's."""
    assert stored.pooling
    layers = [*stored.vector_layers, *([VectorLayer(kind="normalize")] if stored.normalize else [])]
    names = {kind: name for name, kind in KINDS.items()}
    modules = [
        ("", "Transformer"),
        (POOLING_FOLDER, "Pooling"),
        *((f"{number}_{names[layer.kind]}", names[layer.kind]) for number, layer in enumerate(layers, 2)),
    ]
    for path, _ in modules[1:]:
        os.makedirs(os.path.join(folder, path))
    stored_models.write_mapping(
        [
            {"idx": index, "name": str(index), "path": path, "type": f"{PREFIX}{name}"}
            for index, (path, name) in enumerate(modules)
        ],
        folder,
        MODULES_FILE,
    )
    stored_models.write_mapping(
        _pooling_values(stored.pooling, width, stored.include_prompt), folder, POOLING_FOLDER, CONFIG_FILE
    )
    for number, layer in enumerate(layers):
        read_width = vector_width(width, stored.pooling, layers[:number])
        own = with_prefix(stored.weights, f"{LAYER_PREFIX}{number}/")
        weights = {name.rpartition("/")[2]: weight for name, weight in own.items()}
        _write_layer(layer, read_width, weights, os.path.join(folder, modules[number + 2][0]))
    prompts = {"document" if name == "passage" else name: prompt for name, prompt in stored.prompts.items()}
    default = next((name for name, prompt in prompts.items() if prompt == stored.default_prompt), "default")
    stored_models.write_mapping(
        {
            "prompts": prompts | ({default: stored.default_prompt} if stored.default_prompt else {}),
            "default_prompt_name": default if stored.default_prompt else None,
            "similarity_fn_name": "cosine",
        }
        | ({"truncate_dim": stored.dimensions} if stored.dimensions else {}),
        folder,
        SETTINGS_FILE,
    )
    if stored.longest_text:
        stored_models.write_mapping(
            {"max_seq_length": stored.longest_text, "do_lower_case": False}, folder, LENGTH_FILE
        )


def _pooling_values(pooling: Poolings, width: int, include_prompt: bool) -> Fields:
    """Returns the configuration of a pooling in the form that every version reads; only version 6 and later read
    another order.
    """
    flags = {key: mode in poolings_of(pooling) for key, mode in MODES.items()}
    in_order = [mode for key, mode in MODES.items() if flags[key]] == [*poolings_of(pooling)]
    modes = flags if in_order else {"pooling_mode": [*poolings_of(pooling)]}
    return {"word_embedding_dimension": width} | modes | ({} if include_prompt else {"include_prompt": False})


def _write_layer(layer: VectorLayer, width: int, weights: Weights, folder: str) -> None:
    """Writes the configuration and the weights of a layer, whose input vectors have `width` numbers."""
    if layer.kind == "normalize":
        return
    values: Fields = {"dimension": width}
    if layer.kind == "dense":
        name = next(name for name, ours in ACTIVATIONS.items() if ours == layer.activation)
        values = {
            "in_features": width,
            "out_features": layer.units,
            "bias": layer.use_bias,
            "activation_function": f"torch.nn.modules.{'linear' if name == 'Identity' else 'activation'}.{name}",
        }
    stored_models.write_mapping(values, folder, CONFIG_FILE)
    save_file(
        {theirs: np.ascontiguousarray(weights[ours].T) for theirs, ours in WEIGHTS.items() if ours in weights},
        os.path.join(folder, WEIGHTS_FILE),
        metadata={"format": "pt"},
    )
