"""Clients of TF Serving and of the embedded server: rows in, rows out, over REST or gRPC.

    with RestClient("http://127.0.0.1:8501", "sentiment") as client:
        for answer in client.predict(["a fine film", "two hours of rain"]):
            print(answer["label"], answer["probabilities"])

    async with AsyncRestClient("http://127.0.0.1:8501", "sentiment") as client:
        answers = await client.predict(texts)

Long lists are sent in batches, several at a time, and come back in order. What the server refuses for the moment
(UNAVAILABLE, status 503) is sent again, later and later, within one deadline; a request that was lost on its way may have
run, and is sent again only if `repeat_lost` says so. The REST clients need neither TensorFlow nor gRPC.
"""

from official_bert.server.client.asynchronous import AsyncGrpcClient, AsyncModelClient, AsyncRestClient
from official_bert.server.client.attempts import ServingError
from official_bert.server.client.blocking import GrpcClient, ModelClient, RestClient

__all__ = ["AsyncGrpcClient", "AsyncModelClient", "AsyncRestClient", "GrpcClient", "ModelClient", "RestClient", "ServingError"]
