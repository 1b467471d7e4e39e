"""Hugging Face's text-embeddings-inference (TEI): `/embed`, `/embed_sparse`, `/rerank`, `/info`, `/health`.

Source: TEI's OpenAPI description. Its addresses name no model: `--default_model` answers, or the only model that can.
`POST /` is `/embed`, because `huggingface_hub.InferenceClient` uses it if it gets the server's address alone.

The outputs of a model's signature tell what it can do: `embedding`; ids and weights of tokens, [B,K] each; a `score`
for two texts.
"""

from collections.abc import Sequence

import numpy as np
import orjson
from aiohttp import web

from official_bert.server.models.servable import Signature
from official_bert.server.protocols.rest_protocol import (
    RestProtocol,
    Route,
    check_whole,
    gives_vectors,
    json_response,
    prompts_of,
    vectors_of,
)
from official_bert.server.requests.reading import ModelAddress, Reading
from official_bert.server.requests.request_handler import Answer
from official_bert.server.statuses import invalid
from official_bert.server.tensors import NUMPY_TYPES

CUT = '; with "truncate": true its end is cut off'


class TextEmbeddings(RestProtocol):
    """Answers TEI's requests with the default model, or with the only one that can."""

    def route(self, method: str, path: str) -> Route | None:
        """Returns the handler of one of TEI's addresses; None for other addresses."""
        return {
            ("POST", "/"): self._embed,
            ("POST", "/embed"): self._embed,
            ("POST", "/embed_sparse"): self._embed_sparse,
            ("POST", "/rerank"): self._rerank,
            ("GET", "/info"): self._info,
            ("GET", "/health"): self._health,
        }.get((method, path))

    async def _embed(self, request: web.BaseRequest, deadline: float | None) -> web.StreamResponse:
        async with self.reading(request, "Embed", "embed", deadline, is_able=gives_vectors) as reading:
            name = await self.model_that_takes(reading.address.name, reading.inputs)
            answer = await self._predict(
                name, reading, deadline, ("embedding",), "one that run_export --head=embeddings wrote"
            )
            vectors = vectors_of(answer, reading.more["dimensions"], reading.more["normalize"])
            return await self.respond(request, answer, lambda: orjson.dumps(vectors, option=orjson.OPT_SERIALIZE_NUMPY))

    async def _embed_sparse(self, request: web.BaseRequest, deadline: float | None) -> web.StreamResponse:
        async with self.reading(request, "EmbedSparse", "embed", deadline, is_able=gives_sparse_vectors) as reading:
            name = await self.model_that_takes(reading.address.name, reading.inputs)
            async with self.handler.using(name) as servable:
                ids, weights = sparse_outputs(servable.signature(""), name)
            if reading.more["dimensions"]:
                raise invalid("'dimensions': expected none, because vectors with an entry for each token are not cut")
            answer = await self._predict(name, reading, deadline)
            return await self.respond(
                request, answer, lambda: sparse_json(answer.outputs[ids], answer.outputs[weights])
            )

    async def _rerank(self, request: web.BaseRequest, deadline: float | None) -> web.StreamResponse:
        async with self.reading(request, "Rerank", "rerank", deadline, is_able=is_reranker) as reading:
            name = await self.model_that_takes(reading.address.name, reading.inputs)
            answer = await self._predict(name, reading, deadline, ("score",), "one with a score for two texts")
            scores = np.asarray(answer.outputs["score"], np.float64)
            if not reading.more["raw_scores"]:
                scores = np.exp(-np.logaddexp(0, -scores))  # sigmoid, without overflow
            texts = reading.inputs["text_pair"] if reading.more["return_text"] else None
            return await self.respond(
                request,
                answer,
                lambda: orjson.dumps(
                    [
                        {
                            "index": int(index),
                            "score": float(scores[index]),
                            **({} if texts is None else {"text": texts[index].decode("utf-8")}),
                        }
                        for index in np.argsort(-scores, kind="stable")
                    ]
                ),
            )

    async def _predict(
        self, name: str, reading: Reading, deadline: float | None, outputs: Sequence[str] = (), kind: str = ""
    ) -> Answer:
        """Runs a model. Raises RequestError if it truncates a text and the request does not allow that."""
        answer = await self.predict(ModelAddress(name), reading, deadline, outputs, kind)
        if not reading.more["truncate"]:
            check_whole(answer, CUT)
        return answer

    async def _info(self, request: web.BaseRequest, deadline: float | None) -> web.StreamResponse:
        name, limits = await self.chosen_model(), self.handler.limits
        async with self.handler.using(name) as servable:
            body = {
                "model_id": name,
                "model_sha": str(servable.version),
                "model_dtype": "float32",
                "model_type": _kind(servable.signature(""), servable.labels),
                "max_client_batch_size": limits.max_request_rows,
                "max_concurrent_requests": limits.max_concurrent_requests,
                "prompts": prompts_of(servable),
                "version": "official_bert",
            }
        return json_response(body)

    async def _health(self, request: web.BaseRequest, deadline: float | None) -> web.StreamResponse:
        return web.Response(status=503 if self.handler.why_not_ready() else 200)


def is_reranker(signature: Signature) -> bool:
    """Returns whether a model scores two texts."""
    return "score" in signature.outputs and "text_pair" in signature.inputs


def _by_kind(signature: Signature) -> dict[str, list[str]]:
    """Returns the names of the outputs of shape [B,K] that are integers (i) and floats (f)."""
    by_kind: dict[str, list[str]] = {"i": [], "f": []}
    for key, spec in signature.outputs.items():
        if spec.shape is not None and len(spec.shape) == 2 and spec.dtype in NUMPY_TYPES:
            by_kind.get(NUMPY_TYPES[spec.dtype].kind, []).append(key)
    return by_kind


def gives_sparse_vectors(signature: Signature) -> bool:
    """Returns whether a signature gives token ids and their weights."""
    return [len(names) for names in _by_kind(signature).values()] == [1, 1]


def sparse_outputs(signature: Signature, name: str) -> tuple[str, str]:
    """Returns the names of the outputs with token ids and weights: the only integers and the only floats of shape
    [B,K].

    Raises RequestError if the model has no such pair.
    """
    if not gives_sparse_vectors(signature):
        raise invalid(
            f"model {name!r}: expected one with ids of tokens and their weights, got a model that gives "
            f"{', '.join(signature.outputs)}"
        )
    ids, weights = _by_kind(signature).values()
    return ids[0], weights[0]


def sparse_json(ids: np.ndarray, weights: np.ndarray) -> bytes:
    """Returns lists of token ids with their weights. Entries of weight 0 are padding and are left out."""
    return orjson.dumps(
        [
            [{"index": int(token), "value": float(weight)} for token, weight in zip(*row) if weight]
            for row in zip(ids.tolist(), weights.tolist())
        ]
    )


def _kind(signature: Signature, labels: list[str]) -> dict:
    """Returns the type of a model in TEI's form."""
    if gives_vectors(signature):
        return {"embedding": {}}
    if is_reranker(signature):
        return {"reranker": {"id2label": {"0": "score"}, "label2id": {"score": 0}}}
    return {
        "classifier": {
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
        }
    }
