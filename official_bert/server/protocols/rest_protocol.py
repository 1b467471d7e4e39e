"""The base class of REST protocols: reads a body, chooses a model, runs it, and writes the answer.

Limits, tokens, metrics, batches and deadlines are the same for all protocols.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import numpy as np
from aiohttp import web

from official_bert.server.listeners.connections import Connections, unpack
from official_bert.server.models.servable import Servable, Signature
from official_bert.server.requests.reading import ModelAddress, Reading
from official_bert.server.requests.request_handler import Admission, Answer, RequestHandler, check_finite
from official_bert.server.server_config import is_ids_twin, twin
from official_bert.server.statuses import RequestError, answer_too_large, invalid
from official_bert.server.tensors import NUMPY_TYPES

Route = Callable[[web.BaseRequest, float | None], Awaitable[web.StreamResponse]]
IsAble = Callable[[Signature], bool]  # whether a model can answer at an address


def any_model(signature: Signature) -> bool:
    """Returns True: every model can answer."""
    return True


def gives_vectors(signature: Signature) -> bool:
    """Returns whether a signature has an output `embedding`."""
    return "embedding" in signature.outputs


class RestProtocol:
    """A REST protocol; `route` returns the handler of an address.

    `default_model` answers requests that name no model.
    """

    def __init__(self, handler: RequestHandler, connections: Connections, default_model: str = ""):
        self.handler, self.connections, self.default_model = handler, connections, default_model

    def route(self, method: str, path: str) -> Route | None:
        """Returns the handler of an address; None if the protocol lacks it."""
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def admitted(
        self, request: web.BaseRequest, api: str, deadline: float | None, name: str = ""
    ) -> AsyncIterator[tuple[bytes, Admission]]:
        """Yields the body of a request and its admission. The request counts as running inside the block."""
        body = await self.connections.read_body(request)
        with self.connections.working(request), self.handler.admitted(name, api, "REST", deadline) as admission:
            if "gzip" in request.headers.get("Content-Encoding", ""):  # TF Serving ignores other encodings
                body = await asyncio.to_thread(unpack, body, self.handler.limits.max_request_bytes)
            yield body, admission

    @contextlib.asynccontextmanager
    async def reading(
        self,
        request: web.BaseRequest,
        api: str,
        reader: str,
        deadline: float | None,
        name: str = "",
        is_able: IsAble | None = None,
        **task: Any,
    ) -> AsyncIterator[Reading]:
        """Yields a parsed request, which counts as running for its model inside the block.

        `reader` is a name in `readers`, `name` the model in the path. `is_able` is given if the path names no model: if
        the body names none either, `chosen_model` decides.
        """
        async with self.admitted(request, api, deadline, name) as (body, admission):
            reading = await self.handler.reader.read(reader, body, **task)
            admission.name = name or reading.address.name or await self.chosen_model(is_able or any_model)
            yield dataclasses.replace(reading, address=ModelAddress(admission.name)) if is_able else reading

    async def predict(
        self,
        address: ModelAddress,
        reading: Reading,
        deadline: float | None,
        outputs: Iterable[str] = (),
        kind: str = "",
    ) -> Answer:
        """Runs a model and returns its answer.

        Raises RequestError if the model lacks one of `outputs`, and names the `kind` of model that was expected.
        """
        async with self.handler.using(*address) as servable:
            if reading.signature not in ("", *(prompts := prompts_of(servable))):
                prompt_names = f"one of {', '.join(prompts)}" if prompts else "none, because this model has no prompts"
                raise invalid(f"'prompt_name': expected {prompt_names}, got {reading.signature!r:.60}")
            signature = servable.signature(reading.signature)
            if missing := [name for name in outputs if name not in signature.outputs]:
                raise invalid(
                    f"model {address.name!r} has no output {missing[0]}: expected {kind}, got a model that gives "
                    f"{', '.join(signature.outputs)}"
                )
            if (dtype := packed_type(signature)) and "embedding" in outputs:
                raise invalid(
                    f"model {address.name!r} gives packed vectors ({dtype}; run_export --vectors): expected one with "
                    f"float32 vectors here; POST /v1/models/{address.name}:predict gives the codes"
                )
            return await self.handler.predict(servable, reading, deadline)

    async def model_that_takes(self, name: str, inputs: Iterable[str]) -> str:
        """Returns the name of a served model that takes these inputs: `name` itself, or the other form (`text`, `ids`)
        of its export.

        Raises RequestError if neither is served: NOT_FOUND if `name` is unknown.
        """
        models, takes_ids = self.handler.manager.models, "input_ids" in inputs
        if name not in models:
            raise RequestError("NOT_FOUND", f"model {name!r:.200}: expected one of {', '.join(sorted(models))}")
        async with self.handler.using(name) as servable:
            if ("input_ids" in servable.signature("").inputs) == takes_ids:
                return name
        form = "ids" if takes_ids else "text"
        if other := twin(models[name], models.values(), form):
            return other.name
        folder = os.path.join(os.path.dirname(models[name].base_path), form)
        raise invalid(
            f"model {name!r} takes {'text' if takes_ids else 'token ids'}: expected {folder}, which takes "
            f"{'token ids' if takes_ids else 'text'}, to be served beside it"
        )

    async def chosen_model(self, is_able: IsAble = any_model) -> str:
        """Returns the model for requests that name none: the default, the only one, or the only one that `is_able`.

        The two forms (`text`, `ids`) of an export count as one. Raises RequestError if several models remain.
        """
        models = self.handler.manager.models.values()
        names = sorted(model.name for model in models if not is_ids_twin(model, models))
        if self.default_model or len(names) == 1:
            return self.default_model or names[0]
        able = []
        for name in names:
            async with self.handler.using(name) as servable:
                able += [name] if is_able(servable.signature("")) else []
        if len(able) != 1:
            raise invalid(
                f"several models are served ({', '.join(able or names)}): a request without a model is answered by "
                f"--default_model, which is not given"
            )
        return able[0]

    async def respond(
        self,
        request: web.BaseRequest,
        answer: Answer,
        write: Callable[[], bytes],
        content_type: str = "application/json",
    ) -> web.Response:
        """Returns a response with the body that `write` returns. Raises RequestError if the body is larger than
        `max_answer_bytes`.
        """
        body = await answer.written(write)
        if len(body) > (most := self.handler.limits.max_answer_bytes):
            raise answer_too_large(most)
        if answer.is_large:
            return self.connections.response(request, body, content_type)
        return web.Response(body=body, content_type=content_type)


def json_response(value: Any) -> web.Response:
    """Returns a small JSON response."""
    return web.Response(body=json.dumps(value).encode("utf-8"), content_type="application/json")


def prompts_of(servable: Servable) -> list[str]:
    """Returns the names of a model's prompts: signatures with the one input `text` and at least the outputs of the
    default.
    """
    names, default = servable.signatures, servable.signature("")
    return sorted(
        name
        for name, signature in names.items()
        if signature is not default
        and list(signature.inputs) == ["text"]
        and set(default.outputs) <= set(signature.outputs)
    )


def packed_type(signature: Signature) -> str:
    """Returns the type of a signature's vectors if they are quantized (`run_export --vectors=int8`), else ""."""
    spec = signature.outputs.get("embedding")
    kind = NUMPY_TYPES.get(spec.dtype) if spec else None
    return kind.name if kind is not None and kind.kind != "f" and kind.name != "bfloat16" else ""


def vectors_of(answer: Answer, dimensions: int, normalize: bool) -> np.ndarray:
    """Returns the vectors of an answer, float32 [B,D], cut to `dimensions` (0: all) and, with `normalize`, of length 1.

    Raises RequestError if the model has fewer dimensions, and for numbers beyond float32.
    """
    with np.errstate(over="ignore"):
        vectors = np.asarray(answer.outputs["embedding"], np.float32)
    check_finite({"embedding": vectors})  # which a float64 may be no longer
    if dimensions > vectors.shape[1]:
        raise invalid(
            f"'dimensions': expected at most the {vectors.shape[1]} that the model's vectors have, got {dimensions}"
        )
    vectors = np.ascontiguousarray(vectors[:, : dimensions or None])  # as JSON wants it
    if normalize:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        check_finite({"embedding": lengths})
        vectors = vectors / np.maximum(lengths, 1e-12)
    return vectors


def check_whole(answer: Answer, remedy: str = "") -> None:
    """Raises RequestError if the model truncated a text; `remedy` is appended to the message."""
    truncated = answer.outputs.get("truncated")
    if truncated is not None and truncated.any():
        raise invalid(f"text {int(np.argmax(truncated))} has more tokens than the model takes{remedy}")
