"""A model that gives NaN or infinity for a text: the text's request fails, with its row, in every protocol; others are
answered.
"""

import concurrent.futures
import json

import grpc
import made_serving
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from official_bert.server.protocols.kserve.messages import message_class
from official_bert.server.server import ServerOptions
from official_bert.server.server_config import ServedModelConfig

GOOD, BAD, HUGE, DOUBLE = "good", "nan", "inf", "1e200"


class Numbers(tf.Module):
    """Its numbers are what the text says: `nan`, `inf`, `1e200` (more than a float32 takes), and else 2."""

    @staticmethod
    def number(text, dtype=tf.float32):
        says = tf.strings.regex_full_match(text, "nan|-?inf|1e200")
        return tf.strings.to_number(tf.where(says, text, tf.fill(tf.shape(text), "2")), dtype)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")], autograph=False)
    def vectors(self, text):
        number = self.number(text, tf.float64)
        return {
            "embedding": tf.stack([tf.ones_like(number), number], 1),
            "token_count": tf.strings.length(text),
            "truncated": tf.zeros_like(text, tf.bool),
            "copy": text,
            "half": tf.cast(tf.where(text == DOUBLE, 2.0, self.number(text)), tf.bfloat16),
        }

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name) for name in ("text", "text_pair")], autograph=False
    )
    def scores(self, text, text_pair):
        return {"score": self.number(text_pair)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")], autograph=False)
    def tokens(self, text):
        number = self.number(text)[:, None]
        return {"token_ids": tf.ones_like(number, tf.int32), "weights": number}

    @tf.function(input_signature=[tf.TensorSpec([], tf.string, "text")], autograph=False)
    def single(self, text):
        return {"y": self.number(text[None])[0]}


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """Returns a function that runs a server for one of the models, batching or not."""
    root, model, contexts, running = tmp_path_factory.mktemp("numbers"), Numbers(), [], {}
    for name in ("vectors", "scores", "tokens", "single"):
        tf.saved_model.save(model, str(root / name / "1"), signatures={"serving_default": getattr(model, name)})

    def of(name, **options):
        key = (name, *options)
        if key not in running:
            contexts.append(
                made_serving.embedded(
                    ServerOptions(
                        models=[ServedModelConfig(name=name, base_path=str(root / name))],
                        rest_port=0,
                        grpc_port=0,
                        drain_seconds=5,
                        **options,
                    )
                )
            )
            running[key] = contexts[-1].__enter__()
        return running[key]

    yield of
    for context in contexts:
        context.__exit__(None, None, None)


def post(server, path, body):
    status, answer = server.ask(path, json.dumps(body).encode())
    return status, json.loads(answer)


# Of each address over REST: the model, and a request for some texts.
ADDRESSES = {
    "/v1/models/vectors:predict": ("vectors", lambda texts: {"instances": texts}),
    "/v2/models/vectors/infer": (
        "vectors",
        lambda texts: {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]},
    ),
    "/v1/embeddings": ("vectors", lambda texts: {"model": "vectors", "input": texts}),
    "/embed": ("vectors", lambda texts: {"inputs": texts}),
    "/rerank": ("scores", lambda texts: {"query": "q", "texts": texts}),
    "/embed_sparse": ("tokens", lambda texts: {"inputs": texts}),
}


@pytest.mark.parametrize("path", ADDRESSES)
def test_the_request_fails_with_its_row_and_is_answered_without_it(serve, path):
    name, request = ADDRESSES[path]
    server = serve(name)
    for bad in (BAD, HUGE, "-inf"):
        status, answer = post(server, path, request([GOOD, GOOD, bad]))
        assert (
            status == 500 and "row 2, output" in json.dumps(answer) and "not a finite number" in json.dumps(answer)
        ), answer
    assert post(server, path, request([GOOD, GOOD]))[0] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "vectors", "input": [GOOD, DOUBLE]}),
        ("/embed", {"inputs": [GOOD, DOUBLE]}),
        ("/embed", {"inputs": [GOOD, DOUBLE], "normalize": False}),
        ("/v1/embeddings", {"model": "vectors", "input": [GOOD, DOUBLE], "encoding_format": "base64"}),
    ],
)
def test_a_double_beyond_float32_is_no_vector(serve, path, body):
    status, answer = post(serve("vectors"), path, body)
    assert status == 500 and "row 1, output 'embedding'" in json.dumps(answer), answer


def test_grpc_says_it_too(serve):
    server = serve("vectors")
    request = predict_pb2.PredictRequest(inputs={"text": tf.make_tensor_proto([GOOD, BAD])})
    request.model_spec.name = "vectors"
    infer = message_class("ModelInferRequest")(
        model_name="vectors",
        inputs=[
            {
                "name": "text",
                "datatype": "BYTES",
                "shape": [2],
                "contents": {"bytes_contents": [GOOD.encode(), BAD.encode()]},
            }
        ],
    )
    with grpc.insecure_channel(server.target) as channel:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        for call, message in (
            (predict, request),
            (channel.unary_unary("/inference.GRPCInferenceService/ModelInfer"), infer.SerializeToString()),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call(message, timeout=60)
            assert (
                caught.value.code() == grpc.StatusCode.INTERNAL
                and "row 1, output 'embedding'" in caught.value.details()
            )
        # only what is answered counts
        for names, answered in ((["token_count", "copy", "truncated"], True), (["half"], False)):
            del request.output_filter[:]
            request.output_filter.extend(names)
            if answered:
                assert tf.make_ndarray(predict(request, timeout=60).outputs["copy"]).tolist() == [
                    GOOD.encode(),
                    BAD.encode(),
                ]
            else:
                with pytest.raises(grpc.RpcError, match="row 1, output 'half'"):
                    predict(request, timeout=60)


def test_rows_are_those_of_the_request_in_a_batch_and_in_parts(serve):
    """Innocent requests of the same batch get their answers."""
    server = serve("scores")

    def ask(number):
        texts = [BAD if (place, number % 3) == (number, 0) else GOOD for place in range(40)]
        return number, post(server, "/rerank", {"query": "q", "texts": texts})

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number, (status, answer) in pool.map(ask, range(36)):
            assert status == (500 if number % 3 == 0 else 200)
            assert number % 3 or f"row {number}, output 'score'" in answer["error"]


@pytest.mark.parametrize("batching", [True, False])
def test_an_answer_without_rows_has_none(serve, batching):
    server = serve("single", **({} if batching else {"batching": None}))
    assert post(server, "/v1/models/single:predict", {"inputs": GOOD}) == (200, {"outputs": 2.0})
    status, answer = post(server, "/v1/models/single:predict", {"inputs": BAD})
    assert (status, answer) == (500, {"error": "output 'y': the model's answer is not a finite number"})
