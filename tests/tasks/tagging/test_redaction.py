"""Redaction against worked texts, and against the entities of the plain tagger, rebuilt in Python."""

import itertools
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from official_bert.tasks.tagging.redaction import Redaction
from official_bert.tasks.tagging.served import ServedRedactor, ServedTagger

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
NFD = unicodedata.normalize("NFD", "José")


class Found:
    """A tagger that finds given names, (name, type), wherever they stand in a text."""

    types = ("LOC", "PER")

    def __init__(self, names):
        self.names = names

    def answer_text(self, inputs):
        """Returns the entities as `ServedTagger` does."""
        columns = {name: [] for name in ("entities", "types", "starts", "ends")}
        for text in (text.decode() for text in inputs["text"].numpy()):
            places = sorted(
                (start, start + len(name), kind, name)
                for name, kind in self.names
                for start in range(len(text))
                if text.startswith(name, start)
            )
            for column, values in zip(("starts", "ends", "types", "entities"), zip(*places) if places else [()] * 4):
                columns[column].append(list(values))
        counts = list(map(len, columns["starts"]))
        types = {"starts": tf.int32, "ends": tf.int32}
        padded = {
            name: tf.ragged.constant(rows, types.get(name, tf.string), ragged_rank=1).to_tensor()
            for name, rows in columns.items()
        }
        return {**padded, "num_entities": tf.constant(counts, tf.int32), "truncated": tf.zeros(len(counts), tf.bool)}


class RedactedFound(Redaction, Found):
    """The same names, redacted."""


NAMES = [
    *(("Ada", "PER"), ("Bob Ray", "PER"), (NFD, "PER"), ("สมชาย", "PER")),
    *(("Rome", "LOC"), ("中", "LOC"), ("国", "LOC")),
]
WORKED = {
    "Ada met Bob Ray. Ada left Rome": "[PER_1] met [PER_2]. [PER_1] left [LOC_3]",
    "": "",
    "nobody": "nobody",
    "RomeAda中国": "[LOC_1][PER_2][LOC_3][LOC_4]",  # they touch
    "👩‍👩‍👧 Ada 🇩🇪 Rome👍🏽": "👩‍👩‍👧 [PER_1] 🇩🇪 [LOC_2]👍🏽",
    f"é {NFD} e\u0301 Ada": "é [PER_1] e\u0301 [PER_2]",
    "คุณสมชายไปRome": "คุณ[PER_1]ไป[LOC_2]",
    "[PER_1] met Ada": "[PER_1] met [PER_2]",  # the text's own is no replacement, and nobody else's
    "[per_7] [LOC_2] [DOG_99] Ada, Rome, Ada": "[per_7] [LOC_2] [DOG_99] [PER_8], [LOC_9], [PER_8]",
    "[PER_Ada] [PER_12345678901] \x01Ada": "[PER_[PER_1]] [PER_12345678901] \x01[PER_1]",
    "[PER_Rome1] [Rome_1]": "[PER_[LOC_1]1] [[LOC_1]_1]",
}


def test_names_are_replaced_by_their_type_and_a_number_that_stays_within_the_text():
    found = RedactedFound(NAMES).answer_text({"text": tf.constant(list(WORKED))})
    assert [text.decode() for text in found["redacted"].numpy()] == list(WORKED.values())
    assert "entities" not in found
    row = list(WORKED).index("RomeAda中国")
    assert found["replacements"][row].numpy().tolist()[:4] == [b"[LOC_1]", b"[PER_2]", b"[LOC_3]", b"[LOC_4]"]
    assert found["starts"][row].numpy().tolist()[:4] == [0, 4, 7, 8]


def test_texts_of_a_batch_are_redacted_as_each_alone():
    redactor = RedactedFound(NAMES)
    for text, wanted in WORKED.items():
        assert redactor.answer_text({"text": tf.constant([text])})["redacted"].numpy()[0].decode() == wanted
    none = redactor.answer_text({"text": tf.constant([], tf.string)})
    assert none["redacted"].shape == (0,) and none["replacements"].shape[0] == 0


def rebuilt(text, answer, index):
    """Returns the text with the replacements at the places of an answer, and (type, name) of each."""
    count = int(answer["num_entities"][index])
    columns = [answer[name].numpy()[index][:count].tolist() for name in ("starts", "ends", "types", "replacements")]
    parts, last, names = [], 0, []
    for start, end, kind, replacement in zip(*columns):
        assert last <= start < end
        parts += [text[last:start], replacement.decode()]
        names.append((kind.decode(), text[start:end], replacement.decode()))
        last = end
    return "".join([*parts, text[last:]]), names


@pytest.mark.parametrize("pretokenized", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_redactor_replaces_the_entities_of_the_tagger_in_texts_of_any_length(
    token_tagger, graph_tokenizer, pretokenized
):
    rng = np.random.default_rng(0)
    words = ["Núñez", "Brno", "the", "surveyor", NFD, "สมชาย", "👩‍👩‍👧", "中国", "½", "[PER_3]", "St.", "'s", "\n", "#"]
    texts = ["", *(" ".join(rng.choice(words, count)) for count in (1, 5, 40, 300))]
    made = [
        kind(token_tagger, graph_tokenizer, 20, labels=LABELS, doc_stride=5, pretokenized=pretokenized)
        for kind in (ServedTagger, ServedRedactor)
    ]
    plain, answer = (
        tf.function(served.answer_text, input_signature=[dict(served.text_inputs)], autograph=False)(
            {"text": tf.constant(texts)}
        )
        for served in made
    )
    assert set(ServedRedactor.outputs) == set(answer)
    total = 0
    for index, text in enumerate(texts):
        count = int(plain["num_entities"][index])
        entities = [
            (kind.decode(), entity.decode())
            for kind, entity in zip(plain["types"].numpy()[index][:count], plain["entities"].numpy()[index][:count])
        ]
        redacted, names = rebuilt(text, answer, index)
        assert answer["redacted"].numpy()[index].decode() == redacted
        assert [name[:2] for name in names] == entities
        numbers = {}
        for name in entities:  # numbered by hand: above 3 if the text has [PER_3]
            numbers.setdefault(name, len(numbers) + 1 + 3 * ("[PER_3]" in text))
        assert [replacement for *_, replacement in names] == [f"[{name[0]}_{numbers[name]}]" for name in entities]
        total += count
    assert total > 20


def test_entities_of_a_tagger_do_not_overlap(token_tagger, graph_tokenizer):
    served = ServedTagger(token_tagger, graph_tokenizer, 20, labels=LABELS, doc_stride=5)
    text = "½⅓ ㎏㎏ ﬁﬃ 中国 e\u0301e\u0301 don't-stop [PER_1] " * 20
    found = served.answer_text({"text": tf.constant([text])})
    spans = list(zip(found["starts"].numpy()[0].tolist(), found["ends"].numpy()[0].tolist()))
    assert len(spans) > 10 and all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
