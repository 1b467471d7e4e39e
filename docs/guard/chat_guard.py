"""Guards a chat: refuses some texts, and takes names out of the others before they go on to another model.

python docs/guard/chat_guard.py http://127.0.0.1:8501 'Please send Ada Lovelace the invoice.'
"""

import sys

from official_bert.tools.client import RestClient

REFUSAL = "I cannot help with that."


def ask(server: str, model: str, text: str) -> dict:
    """Returns a model's answer to a text."""
    with RestClient(server, model) as client:
        return next(iter(client.predict([text])))


def guard(server: str, text: str) -> tuple[str, dict[str, str]]:
    """Returns what may go on to another model, and the names to put back into its answer; a refusal has none."""
    verdict = ask(server, "requests", text)
    if verdict["label"] == "refuse" or verdict.get("abstains"):
        return REFUSAL, {}
    found = ask(server, "names", text)
    spans = zip(found["replacements"], found["starts"], found["ends"])
    return found["redacted"], {replacement: text[start:end] for replacement, start, end in spans if replacement}


def restore(answer: str, names: dict[str, str]) -> str:
    """Puts the names back into the other model's answer."""
    for replacement, name in names.items():
        answer = answer.replace(replacement, name)
    return answer


if __name__ == "__main__":
    for line in sys.argv[2:]:
        print(*guard(sys.argv[1], line), sep="\n  ")
