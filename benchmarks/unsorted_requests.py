"""Measures one request of 32 texts of mixed length beside the same texts in four requests of 8, sorted by length, for
each head.

    python benchmarks/unsorted_requests.py --vocab_file=vocab.txt

Exported models of MiniLM's size with random weights, float32, from raw texts, in the server's own session. The two ways
take turns; a figure is the time of all unsorted requests over that of the sorted ones, for each round.
"""

import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from absl import app, flags
from serving import batches_of, make_texts

from official_bert.config import Config, ModelConfig, TokenizerConfig

FLAGS = flags.FLAGS  # --vocab_file, --count and --rounds are those of serving.py
SIZE = ModelConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)  # MiniLM's
LONGEST, STRIDE = 256, 64
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def makers() -> dict[str, Callable]:
    """Returns what makes the served model of each head."""
    from official_bert.models.classifier import Classifier, SpanPredictor, Tagger
    from official_bert.models.encoder import make_encoder
    from official_bert.models.pretrainer import Pretrainer
    from official_bert.serving.served_embeddings import ServedEmbeddings
    from official_bert.tasks.pretraining.served import ServedFillMask
    from official_bert.tasks.squad.served import ServedSpans
    from official_bert.tasks.tagging.served import ServedTagger
    from official_bert.tasks.texts.served import ServedClassifier, ServedMultiLabel, ServedRegression
    from official_bert.text.graph import GraphTokenizer

    common = (GraphTokenizer(FLAGS.vocab_file, True), LONGEST)
    labels = ["a", "b", "c"]
    return {
        "embeddings": lambda: ServedEmbeddings(make_encoder(SIZE), *common, "mean"),
        "fill_mask": lambda: ServedFillMask(Pretrainer.make(SIZE), *common),
        "classifier": lambda: ServedClassifier(Classifier.make(SIZE, {"num_classes": 3}), *common, labels=labels),
        "multi_label": lambda: ServedMultiLabel(Classifier.make(SIZE, {"num_classes": 3}), *common, labels=labels),
        "regression": lambda: ServedRegression(Classifier.make(SIZE, {"num_classes": 1}), *common),
        "tagger": lambda: ServedTagger(
            Tagger.make(SIZE, {"num_tags": len(TAGS)}), *common, labels=TAGS, doc_stride=STRIDE
        ),
        "question_answering": lambda: ServedSpans(
            SpanPredictor.make(SIZE), *common, doc_stride=STRIDE, max_query_length=16
        ),
    }


def seconds_of(signature, texts: list[str]) -> float:
    """Returns the seconds that one request with these texts takes."""
    values = {
        name: np.array([b"who walked ?" if name == "question" else text.encode() for text in texts], object)
        for name in signature.inputs
    }
    began = time.perf_counter()
    signature.run(values)
    return time.perf_counter() - began


def measure(folder: str, requests: list[list[str]]) -> list[float]:
    """Returns the ratio of unsorted to sorted requests in each round, after one to warm up."""
    from official_bert.server.models.servable import Servable

    ask = functools.partial(seconds_of, Servable("model", 1, f"{folder}/text/1").signature(""))
    ratios = []
    for _ in range(FLAGS.rounds + 1):
        pairs = [(ask(texts), sum(map(ask, batches_of(texts, 8)))) for texts in requests]
        ratios.append(sum(one for one, _ in pairs) / sum(other for _, other in pairs))
    return ratios[1:]


def main(_) -> None:
    """Exports each head, measures it, and prints a table in Markdown."""
    import tensorflow_text  # noqa: F401

    from official_bert.serving import export

    if not FLAGS.vocab_file:
        sys.exit("error: expected --vocab_file")
    config = Config(task="classification", model=SIZE, tokenizer=TokenizerConfig(vocab_file=FLAGS.vocab_file))
    # blanks for fill_mask, words like others elsewhere
    texts = [text.replace("paper", "[MASK]") for text in make_texts()]
    requests = [texts[start : start + 32] for start in range(0, len(texts) - 31, 32)]
    print("| head | unsorted / sorted, median | lowest, highest |\n|---|---|---|")
    for name, make in makers().items():
        with tempfile.TemporaryDirectory() as folder:
            export.export(make(), config, export.ExportOptions(output=folder, batch_sizes=()))
            ratios = measure(folder, requests)
        print(f"| {name} | {statistics.median(ratios):.2f} | {min(ratios):.2f}, {max(ratios):.2f} |", flush=True)


if __name__ == "__main__":
    app.run(main)
