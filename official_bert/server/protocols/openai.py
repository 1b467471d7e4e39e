"""OpenAI's embeddings: `POST /v1/embeddings`. (`GET /v1/models` also has the fields of OpenAI's list of models.)

Source: OpenAI's API reference. As there, vectors have length 1; `dimensions` keeps the first numbers of each vector.
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
from official_bert.server.statuses import invalid
from official_bert.server.tensors import Arrays


class OpenAI(RestProtocol):
    """Answers with the vectors of texts or of rows of ids."""

    def route(self, method: str, path: str) -> Route | None:
        """Returns the handler of `/v1/embeddings`; None for other addresses."""
        return self._embeddings if (method, path) == ("POST", EMBEDDINGS_PATH) else None

    async def _embeddings(self, request: web.BaseRequest, deadline: float | None) -> web.StreamResponse:
        async with self.reading(request, "Embeddings", "openai", deadline, is_able=gives_vectors) as reading:
            model = reading.address.name
            name = await self.model_that_takes(model, reading.inputs)
            async with self.handler.using(name) as servable:
                check_ends(reading.inputs, servable.about)
            outputs = ("embedding",) if "input_ids" in reading.inputs else ("embedding", "token_count")
            answer = await self.predict(
                ModelAddress(name), reading, deadline, outputs, "one that run_export --head=embeddings wrote"
            )
            check_whole(answer)
            vectors = vectors_of(answer, reading.more["dimensions"], normalize=True)
            counts = reading.inputs["input_mask"] if "input_ids" in reading.inputs else answer.outputs["token_count"]
            return await self.respond(request, answer, lambda: to_json(vectors, int(counts.sum()), model, reading.more))


def check_ends(inputs: Arrays, about: Mapping[str, Any]) -> None:
    """Raises RequestError if a row of ids has another first or last id than the model's rows (if the export names
    these).

    Clients such as LangChain send ids of OpenAI's vocabulary by default, which mean other words here.
    """
    ends = about.get("first_id"), about.get("last_id")
    if "input_ids" not in inputs or None in ends:
        return
    ids, last = inputs["input_ids"], inputs["input_mask"].sum(axis=1) - 1
    for place, found in enumerate(zip(ids[:, 0], ids[range(len(ids)), last])):
        if found != ends:
            raise invalid(
                f"'input', item {place}: expected token ids of this model, which begin with {ends[0]} and end with "
                f"{ends[1]}, got {found[0]} and {found[1]}; send texts (LangChain: OpenAIEmbeddings("
                "check_embedding_ctx_length=False))"
            )


def to_json(vectors: np.ndarray, tokens: int, model: str, more: Mapping[str, Any]) -> bytes:
    """Returns the body of an answer. With `base64`, vectors are little-endian float32."""
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
