"""Forms of errors over REST: each protocol, known by the address, has its own."""

from typing import Any

EMBEDDINGS_PATH = "/v1/embeddings"
TEXT_PATHS = ("/", "/embed", "/embed_sparse", "/rerank", "/info")  # of text-embeddings-inference
OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    429: "rate_limit_error",
}
TEXT_TYPES = {429: "overloaded", 503: "overloaded", 504: "overloaded"}


def error_body(path: str, status: int, message: str) -> dict[str, Any]:
    """Returns the JSON object of an error for an address: OpenAI's form, text-embeddings-inference's, or that of TF
    Serving and KServe.
    """
    if path == EMBEDDINGS_PATH:
        error_type = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        return {
            "error": {
                "message": message,
                "type": error_type,
                "param": None,
                "code": "model_not_found" if status == 404 else None,
            }
        }
    if path in TEXT_PATHS:
        return {"error": message, "error_type": TEXT_TYPES.get(status, "validation" if status < 500 else "backend")}
    return {"error": message}
