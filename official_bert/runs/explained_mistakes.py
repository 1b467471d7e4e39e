"""The worst mistakes of an evaluation with coloured words: which speak for the wrong answer, and which against it."""

from collections.abc import Iterator, Sequence

import tensorflow as tf

from official_bert.reports.sections import Section
from official_bert.serving.explanations import Explainer
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import restore_for_inference

NOTE = "Blue words speak for the answer, orange ones against it; a word that you point at shows its share of the logit."


def explained_sections(weights: str, sections: Sequence[Section], count: int) -> Iterator[Section]:
    """Yields a section for each that has mistakes, with the first `count` of them, as the model at `weights` answers.

    Raises ValueError for a model whose mistakes are not texts with labels or scores.
    """
    served = make_served_model(*restore_for_inference(weights), ServingOptions())
    explainer = Explainer(served, weights)
    if explainer.kind not in ("logits", "score"):
        raise ValueError(f"expected a model that gives labels or scores, got {', '.join(served.outputs)}")
    for section in sections:
        rows = []
        for mistake in section.mistakes[:count]:
            texts = dict(zip(served.text_inputs, mistake.texts))
            answer = served.answer_text({name: tf.constant([text]) for name, text in texts.items()})
            found = explainer.explain(texts, {name: value[0].numpy() for name, value in answer.items()})
            rows.append([[*zip(found["words"], found["shares"])], mistake.right, found["target"], found["value"]])
        if rows:
            name, title = f"explained_{section.name}", f"{section.title}: which words made the answer"
            header = "words", "wanted", "explained", "logit"
            yield Section(name=name, title=title, values=rows, note=NOTE, header=header, rows=rows)
