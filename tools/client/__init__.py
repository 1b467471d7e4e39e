"""Clients of TF Serving and of the embedded server: rows in, rows out, over REST or gRPC.

    with RestClient("http://127.0.0.1:8501", "sentiment") as client:
        for answer in client.predict(["a fine film", "two hours of rain"]):
            print(answer["label"], answer["probabilities"])

Long lists are sent in batches, several at a time, and answers come back in order. A request that fails temporarily
(UNAVAILABLE, status 503, no connection) is sent again after growing pauses, until one deadline. The REST client needs
neither TensorFlow nor gRPC.
"""

from official_bert.tools.client.grpc_client import GrpcClient
from official_bert.tools.client.model_client import ModelClient
from official_bert.tools.client.rest_client import RestClient
from official_bert.tools.client.retries import ServingError

__all__ = ["GrpcClient", "ModelClient", "RestClient", "ServingError"]
