"""Columns of words and tags, and rows of them."""

import pytest

from official_bert.data.rows import Rows
from official_bert.data.tagged import chunk_tags, column_files
from official_bert.tasks.tagging import conll
from official_bert.tasks.tagging.options import Options


def write(tmp_path, text, name="file.conll", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return str(path)


def test_columns_may_stand_in_any_order_with_any_separator(tmp_path):
    path = write(tmp_path, "B-PER|x|Ada\nI-PER|x|Lovelace\n\nO|x|wrote\n")
    sentences = conll.read_sentences(path, Options(word_column=2, tag_column=0, separator="|")).sentences
    assert [sentence.words for sentence in sentences] == [("Ada", "Lovelace"), ("wrote",)]
    assert [sentence.tags for sentence in sentences] == [("B-PER", "I-PER"), ("O",)]
    assert [sentence.line for sentence in sentences] == [1, 4]


def test_four_columns_of_conll_2003_with_documents_bom_and_crlf(tmp_path):
    text = (
        "\ufeff-DOCSTART- -X- -X- O\r\n\r\nEU NNP B-NP B-ORG\r\nrejects VBZ B-VP O\r\n\r\n-DOCSTART- -X- -X- O\r\n\r\n"
        "Peter NNP B-NP B-PER\r\n"
    )
    sentences = conll.read_sentences(write(tmp_path, text)).sentences
    assert [(s.words, s.tags, s.document) for s in sentences] == [
        (("EU", "rejects"), ("B-ORG", "O"), 1),
        (("Peter",), ("B-PER",), 2),
    ]


def test_lines_of_spaces_and_tabs_end_sentences_and_odd_line_ends_are_words(tmp_path):
    path = write(tmp_path, "a\tO\n\t\nx\u2028y\tO\nb\tO\n \n\n")
    assert [s.words for s in conll.read_sentences(path, Options(separator="\t")).sentences] == [
        ("a",),
        ("x\u2028y", "b"),
    ]


def test_comments_ranges_and_empty_nodes_of_universal_dependencies_are_no_words(tmp_path):
    path = tmp_path / "dev.conllu"
    path.write_text(
        "# newdoc id = a\n# sent_id = 1\n# text = Don't # "
        "me\n1-2\tDon't\t_\t_\t_\n1\tDo\tdo\tAUX\t_\n2\tn't\tnot\tPART\t_\n"
        "2.1\tyou\tyou\tPRON\t_\n3\t#\t#\tSYM\t_\n4\tme\tI\tPRON\t_\n\n# newdoc\n1\t1-2\t1-2\tNUM\t_\n\n"
    )
    columns = Options(word_column=1, tag_column=3, separator="\t", scheme="plain")
    sentences = conll.read_sentences(str(path), columns).sentences
    assert [(s.words, s.tags, s.document) for s in sentences] == [
        (("Do", "n't", "#", "me"), ("AUX", "PART", "SYM", "PRON"), 1),
        (("1-2",), ("NUM",), 2),
    ]
    assert conll.read_to_tag(str(path), columns, pytest.fail).sentences == sentences
    with pytest.raises(
        ValueError, match=r"dev\.conllu: expected options\.word_column=1 and options\.tag_column=3 .* got 0 and -1"
    ):
        conll.read_sentences(str(path), Options(scheme="plain"))


def test_an_unspecified_column_of_universal_dependencies_is_no_tag(tmp_path):
    path, columns, told = tmp_path / "new.conllu", Options(word_column=1, tag_column=3, scheme="plain"), []
    path.write_text("1\tDo\tdo\t_\t_\n2\tso\tso\t_\t_\n\n")
    assert conll.read_to_tag(str(path), columns, pytest.fail).sentences[0].tags == ()
    with pytest.raises(
        ValueError, match=r"new\.conllu:1: expected a tag in column 3, got '_', with which CoNLL-U leaves it open"
    ):
        conll.read_sentences(str(path), columns)
    path.write_text("1\tDo\tdo\t_\t_\n2\t_\t_\tPUNCT\t_\n\n")  # a word may be this sign
    (sentence,) = conll.read_to_tag(str(path), columns, told.append).sentences
    assert (sentence.words, sentence.tags) == (("Do", "_"), ()) and "read without gold tags" in told[0]
    assert conll.read_to_tag(write(tmp_path, "Do _\n"), Options(scheme="plain"), pytest.fail).sentences[0].tags == (
        "_",
    )


@pytest.mark.parametrize(
    ("lines", "columns", "labels", "tagged"),
    [
        (["a B-X", "", "b O"], Options(), (), True),
        (["-DOCSTART- -X- O", "a NN O", "b NN I-X"], Options(), (), True),
        (["DT|the", "NN|cat"], Options(tag_column=0, separator="|"), ("DT", "NN"), True),
        (["a DT", "b NN"], Options(), (), False),
        (["Vitamin B-12"], Options(), (), False),
        (["They run .", "He ran away ."], Options(), (".",), False),
        (["O", "O"], Options(), (), False),
        ([], Options(), (), False),
    ],
)
def test_lines_of_words_and_tags_are_known_from_texts(lines, columns, labels, tagged):
    assert column_files.is_tagged(lines, columns.tag_column, columns.separator, labels) == tagged


@pytest.mark.parametrize("tag", [None, "", 3.0, True])
def test_a_tag_that_a_row_lacks_is_no_tag_of_its_own(tag):
    rows = Rows("test", [{"tokens": ["a"], "tags": ["NN"]}, {"tokens": ["b", "c"], "tags": ["NN", tag]}])
    told, columns = [], Options(scheme="plain")
    with pytest.raises(ValueError, match=r"test\[row 1\]: expected tags that are texts or whole numbers, got "):
        conll.read_sentences(rows, columns)
    assert [s.tags for s in conll.read_to_tag(rows, columns, told.append).sentences] == [
        (),
        (),
    ] and "read without gold tags" in told[0]


def test_spaces_of_unicode_are_words_or_parts_of_them(tmp_path):
    path = write(tmp_path, "\u00a0 NN B-NP O\nz.\u00a0B. NN\tB-NP O\n\n \u3000 NN B-NP B-X \n")
    assert [(s.words, s.tags) for s in conll.read_sentences(path).sentences] == [
        (("\u00a0", "z.\u00a0B."), ("O", "O")),
        (("\u3000",), ("B-X",)),
    ]
    assert conll.has_tags(conll.opened(path, Options(tag_column=3)))


@pytest.mark.parametrize(
    ("text", "columns", "wanted"),
    [
        ("a O\nb\n", Options(), r":2: column -1 \(tag\) is missing, the line has 1: 'b'"),
        ("a O\nb O\n", Options(tag_column=2), r":1: column 2 \(tag\) is missing, the line has 2"),
        ("a O\n\nb B_PER\n", Options(), r":3: expected a tag such as O, B-PER or I-PER, got 'B_PER'"),
        ("a X-PER\n", Options(), r":1: expected a tag .* got 'X-PER'"),
        ("a\t\tO\n", Options(tag_column=1, separator="\t"), r":1: column 1 \(tag\) is empty"),
        (
            "a O\n",
            Options(word_column=-1),
            r":1: expected words and tags in two columns, got -1 and -1, .* one of the line's 2: 'O'",
        ),
        (
            "DT the\n",
            Options(word_column=1, scheme="plain"),
            r":1: expected words and tags in two columns, got 1 and -1",
        ),
        ("\n \n", Options(), r"no sentence in this file"),
    ],
)
def test_bad_lines_are_named(tmp_path, text, columns, wanted):
    with pytest.raises(ValueError, match=wanted):
        conll.read_sentences(write(tmp_path, text), columns)


def test_a_missing_file_and_one_that_is_no_utf8_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.conll: no such file"):
        conll.read_sentences(str(tmp_path / "none.conll"))
    with pytest.raises(ValueError, match=r":1: not valid utf-8: .* 0xe9 in position 0"):
        conll.read_sentences(write(tmp_path, "é O\n", encoding="latin-1"), Options(encoding="utf-8"))


def test_words_without_tags_are_read_for_prediction(tmp_path):
    sentences = conll.read_sentences(write(tmp_path, "Ada\nLovelace\n\nx\n"), with_tags=False).sentences
    assert [(s.words, s.tags) for s in sentences] == [(("Ada", "Lovelace"), ()), (("x",), ())]


def test_predictions_are_written_beside_the_gold_tags_and_read_again(tmp_path):
    gold = conll.read_sentences(write(tmp_path, "a O\nb B-X\n\n-DOCSTART- O\n\nc O\n")).sentences
    path = str(tmp_path / "out.conll")
    conll.write_columns(path, gold, [["O", "B-X"], ["B-Y"]], separator=" ")
    assert (tmp_path / "out.conll").read_text() == "a O O\nb B-X B-X\n\n-DOCSTART- O O\n\nc O B-Y\n\n"
    again = conll.read_sentences(path).sentences
    assert [s.tags for s in again] == [("O", "B-X"), ("B-Y",)] and [s.document for s in again] == [0, 1]


@pytest.mark.parametrize(
    ("separator", "text"), [("\\t", "a\tO\tO\n_\tO\tO\nb c_d|\tB-X\tO\n\n"), ("|", "a|O|O\n_|O|O\nb c_d_|B-X|O\n\n")]
)
def test_predictions_have_a_line_for_each_word_and_the_separator_of_the_files(tmp_path, separator, text):
    sentence = conll.Sentence(("a", "\n", "b c\td|"), ("O", "O", "B-X"), 1, 0)
    conll.write_columns(str(tmp_path / "out.conll"), [sentence], [["O", "O", "O"]], separator)
    assert (tmp_path / "out.conll").read_text() == text
    again = conll.read_sentences(str(tmp_path / "out.conll"), Options(separator=separator)).sentences
    assert [s.tags for s in again] == [("O", "O", "O")]


def test_words_and_tags_with_spaces_stay_single_columns_of_the_usual_separator(tmp_path):
    sentence, path = conll.Sentence(("New York", "sings"), ("proper noun", "verb"), 1, 0), str(tmp_path / "out.conll")
    conll.write_columns(path, [sentence], [["proper noun", "verb"]])
    (again,) = conll.read_sentences(path, Options(scheme="plain")).sentences
    assert (again.words, again.tags) == (("New_York", "sings"), ("proper_noun", "verb"))
    assert (tmp_path / "out.conll").read_text().startswith("New_York\tproper_noun\tproper_noun\n")


def test_plain_tags_are_kept_and_measured_word_by_word(tmp_path):
    path = tmp_path / "pos.txt"
    path.write_text("The DT\ncat NN\n-LRB- -LRB-\n\nsat VBD\n")
    sentences = conll.read_sentences(str(path), Options(scheme="plain")).sentences
    assert [sentence.tags for sentence in sentences] == [("DT", "NN", "-LRB-"), ("VBD",)]
    assert chunk_tags.convert_tags(["DT", "I-X", "O"], "plain") == ["DT", "I-X", "O"]
    assert chunk_tags.label_list(["VBD", "DT", "DT"], "plain") == ["DT", "VBD"]
    assert all(part.all() for part in chunk_tags.legal_transitions(["DT", "B-X", "I-Y"], "plain"))
    # Right: a twice of three, b none of one (found once). F1: a 2*2/(3+3), b 0.
    assert chunk_tags.plain_scores([["a", "a"], ["a", "b"]], [["a", "b"], ["a", "a"]]) == pytest.approx(
        {"tag_accuracy": 0.5, "macro_f1": (2 * 2 / 6 + 0.0) / 2}
    )


def test_a_file_to_tag_may_have_no_gold_tags(tmp_path):
    said = []
    for text, tags in (
        ("Anna B-PER\nsings O\n", ("B-PER", "O")),
        ("Anna\nsings\n", ()),
        ("Anna NNP\nsings VBZ\n", ()),
        ("Anna B-PER\nsings\n", ()),
    ):
        (tmp_path / "new.txt").write_text(text)
        assert conll.read_to_tag(str(tmp_path / "new.txt"), Options(), said.append).sentences[0].tags == tags
    assert (
        len(said) == 2
        and "expected a tag such as O, B-PER or I-PER, got 'NNP'; this file is read without gold tags" in said[0]
    )
