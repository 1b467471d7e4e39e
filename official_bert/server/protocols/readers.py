"""How a request of each protocol beside TF Serving's is read: bytes and limits in, a `Reading` out. Knows no TensorFlow."""

import types
from collections.abc import Callable, Mapping

from official_bert.server.protocols import texts_json
from official_bert.server.protocols.kserve import tensors
from official_bert.server.reading.requests import Reading

READERS: Mapping[str, Callable[..., Reading]] = types.MappingProxyType({
    "openai": texts_json.read_openai,
    "embed": texts_json.read_embed,
    "rerank": texts_json.read_rerank,
    "kserve_rest": tensors.read_rest,
    "kserve_grpc": tensors.read_grpc})
