"""The readers of all protocols: each turns bytes and limits into a `Reading`. Imports no TensorFlow."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from official_bert.server.protocols import texts_json
from official_bert.server.protocols.kserve import tensors
from official_bert.server.requests import reading


def readers(predict_request: Any) -> Mapping[str, Callable[..., reading.Reading]]:
    """Returns the readers by name. `predict_request` is the class of TF Serving's message."""
    return {
        "predict_rest": reading.read_rest,
        "predict_grpc": functools.partial(reading.read_grpc, message=predict_request),
        "openai": texts_json.read_openai,
        "embed": texts_json.read_embed,
        "rerank": texts_json.read_rerank,
        "kserve_rest": tensors.read_rest,
        "kserve_grpc": tensors.read_grpc,
    }
