"""Labels and answers of text without spaces: exact by characters, as 2018's code has them by words, and counted."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.config import Config, ModelConfig, TokenizerConfig
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import load_task
from official_bert.tasks.squad.alignment import answer_label, answer_pieces
from official_bert.tasks.squad.decoding import DecodingRules, Logits, decode_all
from official_bert.tasks.squad.features import FeatureMaker
from official_bert.tasks.squad.reading import read_squad
from official_bert.text.tokenization import FullTokenizer

KANA = "かきくけこ"
WORDS = [
    *"東京首都住年人",
    *KANA,
    *(f"##{char}" for char in KANA),
    "。",
    "japan",
    "japanese",
    "a",
    "##a",
    "b",
    "##b",
    "-",
    "who",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]), encoding="utf-8")
    return FullTokenizer(str(path))


def examples_of(tmp_path, *rows, alignment="characters", **options):
    path = tmp_path / "train.jsonl"
    path.write_text(
        "".join(
            json.dumps({"context": context, "question": "who", "answers": {"text": [text], "answer_start": [start]}})
            + "\n"
            for context, text, start in rows
        ),
        encoding="utf-8",
    )
    return read_squad(str(path), training=True, alignment=alignment, **options)


def labelled(tmp_path, tokenizer, alignment, *rows, max_seq_length=64):
    """Returns the labelled tokens of each row, and the counts."""
    maker = FeatureMaker(tokenizer, max_seq_length, 4, 4, alignment)
    features = maker.make(examples_of(tmp_path, *rows, alignment=alignment).examples, training=True)
    return [
        (
            feature.start_position - feature.first_position,
            feature.tokens[feature.start_position : feature.end_position + 1],
        )
        for feature in features
        if feature.start_position
    ], maker.labels


@pytest.mark.parametrize(
    ("row", "exact", "in_2018"),
    [
        # The first 東京 is nobody's answer, but 2018 trains on it.
        (("東京首都。東京住", "東京", 5), (5, ["東", "京"]), (0, ["東", "京"])),
        # Alone, く is no ##く, so 2018 finds no such span and takes all that stands between two spaces.
        (
            (f"{KANA}。人 東京", "くけ", 2),
            (2, ["##く", "##け"]),
            (0, ["か", "##き", "##く", "##け", "##こ", "。", "人"]),
        ),
        (("a-a", "a", 2), (2, ["a"]), (0, ["a"])),
        # Both take the whole word: no piece is smaller.
        (("a japanese a", "japan", 2), (1, ["japanese"]), (1, ["japanese"])),
    ],
)
def test_labels_are_the_pieces_of_the_answers_characters(tmp_path, tokenizer, row, exact, in_2018):
    assert labelled(tmp_path, tokenizer, "characters", row)[0] == [exact]
    assert labelled(tmp_path, tokenizer, 2018, row)[0] == [in_2018]


def test_labels_with_other_text_than_the_answer_are_counted(tmp_path, tokenizer):
    rows = [
        ("東京首都。東京住", "東京", 5),
        (f"{KANA}。人", "くけ", 2),
        ("a japanese a", "japan", 2),
        ("a b", "a", 0),
        ("東京住。東京", "京", 4),
        ("東" * 30, "東" * 30, 0),
    ]
    labels, counts = labelled(tmp_path, tokenizer, "characters", *rows, max_seq_length=16)
    assert labels[4] == (5, ["京"])  # 京 at 5 is nearer to 4 than that at 1
    assert counts.line("characters") == (
        "labels of 6 answers: 1 wider than the answer; 1 not at answer_start but at the nearest occurrence of the "
        "answer; 1 not complete in any window, trained as no answer; 3 unlike those of options.answer_alignment=2018"
    )
    _, counts = labelled(tmp_path, tokenizer, 2018, *rows, max_seq_length=16)
    assert counts.line(2018) == (
        "labels of 6 answers: 2 wider than the answer, up to all between two spaces; 2 not at answer_start but at the "
        "first occurrence of the answer; 1 not complete in any window, trained as no answer; "
        "options.answer_alignment=characters labels the answer's own characters"
    )
    assert labelled(tmp_path, tokenizer, "characters", ("a b", "a", 0))[1].line("characters") == ""


def test_answers_with_other_spaces_are_left_out_by_2018_alone(tmp_path):
    rows = [("東\u3000京 a", "東\u3000京", 0), ("a b", "a", 0)]
    assert examples_of(tmp_path, *rows, alignment=2018).warning().endswith("not in the context: 0 ('東\\u3000京')")
    exact = examples_of(tmp_path, *rows)
    assert [(one.answer_start, one.answer_end, one.moved) for one in exact.examples] == [(0, 3, False), (0, 1, False)]
    # Runs of spaces read as one, and spaces around an answer do not count, for both.
    for alignment, text in (("characters", " a b"), ("characters", " a  \tb"), (2018, " a  \tb")):
        file = examples_of(tmp_path, ("b  a \t b", text, 2), alignment=alignment)
        assert [(one.answer_start, one.answer_end, one.moved) for one in file.examples] == [(3, 8, False)]
    assert examples_of(tmp_path, ("a b", "a", 0), ("a b", "人", 0)).skipped == 1


def test_several_answers_in_one_stretch_are_different_ones(tmp_path):
    path = tmp_path / "all.json"
    path.write_text(
        json.dumps(
            {
                "context": "東京首都。東京",
                "question": "who",
                "answers": {"text": ["東京"] * 3, "answer_start": [0, 5, 5]},
            }
        ),
        encoding="utf-8",
    )
    places = [one.answer_start for one in read_squad(str(path), True, several="all", alignment="characters").examples]
    assert places == [0, 5] and len(read_squad(str(path), True, several="all").examples) == 1


def pieces_and_example(tokenizer, context, start, end, folder):
    file = examples_of(folder, (context, context[start:end], start))
    return FeatureMaker(tokenizer).pieces(file.examples[0].passage), file.examples[0]


TEXT = st.text(alphabet=f"{KANA[:2]}東京ab- ", min_size=1, max_size=14)


@settings(max_examples=60, deadline=None)
@given(context=TEXT, start=st.integers(0, 13), length=st.integers(1, 6))
def test_no_shorter_run_of_pieces_covers_the_answer(tokenizer, tmp_path_factory, context, start, length):
    answer = context[start : start + length]
    if not answer.strip():
        return
    pieces, example = pieces_and_example(tokenizer, context, start, start + length, tmp_path_factory.getbasetemp())
    label = answer_label(pieces, example, tokenizer, "characters")
    wanted = {place for place in range(start, start + len(answer)) if context[place] != " "}
    spans = list(zip(pieces.starts, pieces.ends))

    def covers(first, last):
        return wanted <= {place for begin, end in spans[first : last + 1] for place in range(begin, end)}

    runs = [(first, last) for first in range(len(spans)) for last in range(first, len(spans)) if covers(first, last)]
    assert (label.first, label.last) == min(runs, key=lambda run: run[1] - run[0])
    # 2018's loops over all spans of the answer's words.
    first, last = int(pieces.first[example.start_word]), int(pieces.first[example.end_word + 1]) - 1
    reads = " ".join(tokenizer.tokenize(example.answer))
    spans_of_2018 = [
        (begin, end)
        for begin in range(first, last + 1)
        for end in range(last, begin - 1, -1)
        if " ".join(pieces.tokens[begin : end + 1]) == reads
    ]
    assert answer_pieces(pieces, example, tokenizer) == (spans_of_2018 or [(first, last)])[0]


@pytest.mark.parametrize("version", [1, 2])
def test_in_text_with_spaces_labels_are_those_of_2018_unless_counted(golden, version):
    tokenizer, counts, places = FullTokenizer(str(golden / "vocab_uncased.txt")), {}, {}
    for alignment in ("characters", 2018):
        maker = FeatureMaker(tokenizer, 96, 32, 16, alignment)
        examples = read_squad(str(golden / f"squad_v{version}.json"), True, version == 2, alignment=alignment).examples
        places[alignment] = [
            (feature.example_index, feature.start_position, feature.end_position)
            for feature in maker.make(examples, training=True)
        ]
        counts[alignment] = maker.labels
    different = {one[0] for one, other in zip(places["characters"], places[2018], strict=True) if one != other}
    assert len(different) == counts["characters"].unlike_2018 == 1


@pytest.mark.parametrize("alignment", ["characters", 2018])
def test_labels_of_a_long_passage_without_spaces_take_linear_time(tmp_path, tokenizer, alignment):
    context = "東京首か年き" * 3000
    rows = [(context, context[place : place + 4], place) for place in range(9000, 9020)]
    start = time.monotonic()
    maker = FeatureMaker(tokenizer, 64, 48, 4, alignment)
    maker.make(examples_of(tmp_path, *rows[:1], alignment=alignment).examples, training=True)
    for example in examples_of(tmp_path, *rows, alignment=alignment).examples:
        answer_label(maker.pieces(example.passage), example, tokenizer, alignment)
    assert time.monotonic() - start < 20  # 2018's loops would take days


def test_answers_are_slices_of_the_context_unless_2018s_are_asked_for(tmp_path, tokenizer):
    context = f"{KANA}。人  東京  住"
    examples = examples_of(tmp_path, (context, "くけ", 2)).examples
    (feature,) = features = FeatureMaker(tokenizer, 64, 48, 4).make(examples)
    assert feature.tokens[3:] == ["か", "##き", "##く", "##け", "##こ", "。", "人", "東", "京", "住", "[SEP]"]

    def answers(start, end, alignment):
        logits = [Logits(*(np.eye(len(feature.input_ids))[feature.first_position + place] for place in (start, end)))]
        return decode_all(examples, features, logits, DecodingRules(n_best_size=4, answer_alignment=alignment))["0"]

    assert answers(2, 3, "characters").prediction == "くけ" and answers(7, 9, "characters").prediction == "東京  住"
    assert all(answer.text in context for answer in answers(2, 3, "characters").nbest)
    assert answers(7, 9, 2018).prediction == "東京 住"  # single spaces
    assert answers(0, 9, "characters").prediction == context


def test_the_counts_stand_beside_cached_features(tmp_path, tokenizer):
    examples_of(tmp_path, ("東京首都。東京住", "東京", 5), (f"{KANA}。人", "くけ", 2))
    files = DataFiles(train_file=str(tmp_path / "train.jsonl"), cache_dir=str(tmp_path / "cache"))

    def notes(**options):
        model = ModelConfig(
            vocab_size=40,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
            max_position_embeddings=64,
        )
        config = Config(
            task="squad",
            model=model,
            tokenizer=TokenizerConfig(vocab_file=tokenizer.vocab_file),
            options={"max_seq_length": 64, "max_query_length": 4} | options,
        )
        return load_task(config).data.resolve(files, Steps(evaluate=False)).notes

    said = f"{tmp_path}/train.jsonl: labels of 2 answers: 2 unlike those of options.answer_alignment=2018"
    assert notes() == notes() == (said,)
    assert notes(answer_alignment=2018)[0].startswith(
        f"{tmp_path}/train.jsonl: labels of 2 answers: 1 wider than the answer, up to"
    )
