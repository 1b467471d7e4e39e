"""OpenAI's embeddings: `POST /v1/embeddings`. (`GET /v1/models`, TF Serving's neighbour, has the fields of OpenAI's
list.)

Source: OpenAI's API reference. Vectors have length 1, as there; `dimensions` takes the first numbers of a vector.
"""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from aiohttp import web

from official_bert.server.protocols.error_forms import EMBEDDINGS_PATH
from official_bert.server.protocols.rest_protocol import RestProtocol, Route, check_whole, gives_vectors, vectors_of
from official_bert.server.requests.reading import ModelAddress


class OpenAI(RestProtocol):
    """Answers with vectors of texts, or of rows of ids."""

    def route(self, method: str, path: str) -> Route | None:
        """Embeddings only."""
        return self._embeddings if (method, path) == ("POST", EMBEDDINGS_PATH) else None

    async def _embeddings(self, request: web.BaseRequest, deadline: float | None) -> web.StreamResponse:
        async with self.reading(request, "Embeddings", "openai", deadline, is_able=gives_vectors) as reading:
            model = reading.address.name
            name = await self.model_that_takes(model, reading.inputs)
            outputs = ("embedding",) if "input_ids" in reading.inputs else ("embedding", "token_count")
            answer = await self.predict(
                ModelAddress(name), reading, deadline, outputs, "one that run_export --head=embeddings wrote"
            )
            check_whole(answer)
            vectors = vectors_of(answer, reading.more["dimensions"], normalize=True)
            counts = reading.inputs["input_mask"] if "input_ids" in reading.inputs else answer.outputs["token_count"]
            return await self.respond(request, answer, lambda: to_json(vectors, int(counts.sum()), model, reading.more))


def to_json(vectors: np.ndarray, tokens: int, model: str, more: Mapping[str, Any]) -> bytes:
    """Returns the body of an answer; `base64` is that of little-endian float32."""
    if more["encoding"] == "base64":
        values: list = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
    else:
        values = list(vectors)
    return orjson.dumps(
        {
            "object": "list",
            "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "data": [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(values)],
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
