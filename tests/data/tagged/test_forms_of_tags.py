"""Tags of published data sets and models: other letters, letters alone, types alone, refusals of mixtures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_bert.data.tagged import chunk_tags
from official_bert.data.tagged.chunk_tags import Chunk


@pytest.mark.parametrize(
    ("tags", "chunks"),
    [
        ("B-PER M-PER E-PER S-PER O B-LOC E-LOC", [("PER", 0, 3), ("PER", 3, 4), ("LOC", 5, 7)]),  # BMES
        # BMEWO
        ("B-PER M-PER E-PER W-PER O W-LOC W-LOC", [("PER", 0, 3), ("PER", 3, 4), ("LOC", 5, 6), ("LOC", 6, 7)]),
        ("B I I O B B", [("", 0, 3), ("", 4, 5), ("", 5, 6)]),  # BC2GM
        ("B M E S B E", [("", 0, 3), ("", 3, 4), ("", 4, 6)]),  # words of Chinese
        (
            "person-actor person-actor O location person-actor",
            [("person-actor", 0, 2), ("location", 3, 4), ("person-actor", 4, 5)],
        ),
    ],
)
def test_chunks_of_worked_examples(tags, chunks):
    assert chunk_tags.read_chunks(tags.split()) == [Chunk(*chunk) for chunk in chunks]


SCHEMES = ["iob1", "iob2", "iobes", "bilou", "bmes", "bmewo"]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(["A", "B-C", ""])), max_size=5),
    st.sampled_from(SCHEMES),
    st.sampled_from(SCHEMES),
)
def test_every_scheme_gives_the_chunks_of_every_other_back(parts, scheme, other):
    chunks, place = [], 0
    for gap, size, kind in parts:
        chunks.append(Chunk(kind, place + gap, place + gap + size))
        place += gap + size
    tags = chunk_tags.write_tags(chunks, place, scheme)
    assert chunk_tags.read_chunks(tags) == chunks
    assert chunk_tags.convert_tags(chunk_tags.convert_tags(tags, other), scheme) == tags
    assert set(tags) <= set(chunk_tags.label_list({kind for _, _, kind in parts}, scheme))
    assert chunk_tags.scheme_of(chunk_tags.label_list(["A"], scheme), scheme) == scheme


def test_words_that_are_not_labelled_stay_so_and_chunks_go_on_behind_them():
    assert chunk_tags.convert_tags(["B-A", "", "I-A", "O", ""], "iobes") == ["B-A", "", "E-A", "O", ""]


def test_a_letter_alone_continues_the_type_before_it():
    assert chunk_tags.with_types(["B-LOC", "I", "I", "O", "S-X"]) == ["B-LOC", "I-LOC", "I-LOC", "O", "S-X"]
    assert chunk_tags.with_types(["O", "I", "S-X", "I"]) == ["O", None, "S-X", None]


@pytest.mark.parametrize(
    ("labels", "usual", "scheme"),
    [
        (["O", "B-A", "M-A", "E-A", "S-A"], "iob2", "bmes"),
        (["O", "B-A", "M-A", "E-A", "W-A"], "iob2", "bmewo"),
        (["O", "PER", "LOC"], "iob2", "io"),
        (["B", "I", "O"], "iob2", "iob2"),
        (["O", "B-A"], "iobes", "iobes"),
        (["NN", "O"], "plain", "plain"),
        ([], "iob1", "iob1"),
        (["O", "B-A", "L-A", "U-A", "I-A"], "iob2", "bilou"),
    ],
)
def test_labels_that_are_given_tell_the_scheme(labels, usual, scheme):
    assert chunk_tags.scheme_of(labels, usual) == scheme


@pytest.mark.parametrize(
    ("labels", "nothing", "said"),
    [
        (["O", "B-PER", "I-PER", "X", "[CLS]"], ["X", "[CLS]"], "X, [CLS] mark no entity"),
        (["O", "B-LOC", "I"], [], ""),
        (["O", "B-LOC", "Q-LOC", "B"], ["Q-LOC", "B"], "Q-LOC, B mark no entity"),
        (["B", "I", "O", "[PAD]"], ["[PAD]"], "[PAD] mark no entity"),
        (["O", "PER", "X-LOC"], [], "X-LOC begin with no known letter"),
        (["O", "PER", "LOC"], [], ""),
    ],
)
def test_labels_of_a_model_that_mean_nothing_are_told(labels, nothing, said):
    assert chunk_tags.meaningless(labels) == nothing
    assert said in " ".join(chunk_tags.remarks(labels)) and bool(said) == bool(chunk_tags.remarks(labels))


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (
            ["O", "B-PER", "person"],
            "f:3: expected a tag such as O, B-PER or I-PER, got 'person'; the file has 'B-PER' in f:2: all tags must "
            "be",
        ),
        (["O", "B", "person"], "f:3: .* got 'person'; the file has 'B' in f:2"),
        (["NN", "VBZ"], "f:1: .* got 'NN' .options.scheme=plain reads"),
        (["O", "PER", "B_LOC"], "f:3: .* got 'B_LOC'"),
        (["O", "Q-LOC"], "f:2: .* got 'Q-LOC'"),
    ],
)
def test_tags_of_no_scheme_or_of_several_are_refused_with_a_row_of_each(tags, message):
    with pytest.raises(ValueError, match=message):
        chunk_tags.check_tags({tag: f"f:{number}" for number, tag in enumerate(tags, 1)})


@pytest.mark.parametrize(
    ("sentences", "told"),
    [
        (["B-PER I-PER O B-LOC", "B-PER B-PER"], "IOB2 tags: LOC 1, PER 3"),
        (["I-PER I-PER O B-LOC"], "IOB tags: LOC 1, PER 1"),
        (["I-PER B-PER O I-LOC"], "IOB1 tags: LOC 1, PER 2"),
        (["B-A M-A E-A W-A"], "BMEWO tags: A 2"),
        (["B I O"], "IOB2 tags: entity 1"),
        (["person O event"], "IO tags: event 1, person 1"),
        (["B-A L-A U-A"], "BILOU tags: A 2"),
        (["O"], "IO tags: no entity"),
        (["B-A I-A E-A S-A"], "IOBES tags: A 2"),
        (["B-A E-A M-A U-A"], "BEMUO tags: A 3"),
    ],
)
def test_the_scheme_is_told_from_all_tags_with_the_number_of_entities_by_type(sentences, told):
    assert chunk_tags.describe_scheme([tags.split() for tags in sentences]) == told
