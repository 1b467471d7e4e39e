"""Files of words in columns: what divides their lines, what is no word, and files of other forms."""

import pytest

from official_bert.tasks.tagging import conll
from official_bert.tasks.tagging.options import Options


def write(tmp_path, text, name="train.conll"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / name)


def read(tmp_path, text, name="train.conll", columns=None, notes=None, **options):
    file = conll.read_sentences(write(tmp_path, text, name), columns or Options(), **options)
    if notes is not None:
        notes += file.notes
    return [list(zip(sentence.words, sentence.tags)) for sentence in file.sentences]


@pytest.mark.parametrize(
    "text",
    [
        "the\tO\nNew York\tB-LOC\n",
        "the\t\tO\nNew York\tB-LOC\n",
        "the\tO\t\nNew York\tB-LOC \n",
        "the \tO\r\nNew York\t B-LOC\r\n",
        "-DOCSTART- O\n\nthe\tO\nNew York\tB-LOC\n",
        "# a comment without a tab\nthe\tO\nNew York\tB-LOC\n",
    ],
)
def test_tabs_divide_lines_that_all_have_one(tmp_path, text):
    assert read(tmp_path, text) == [[("the", "O"), ("New York", "B-LOC")]]


@pytest.mark.parametrize("text", ["the O\nYork B-LOC\n", " the   O\nYork \t B-LOC\n", "the\tO\nYork B-LOC\n"])
def test_spaces_and_tabs_divide_lines_some_of_which_have_no_tab(tmp_path, text):
    assert read(tmp_path, text) == [[("the", "O"), ("York", "B-LOC")]]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (
            "the O\nin O\nNew York B-LOC\n",
            Options(),
            r":3: expected 2 columns, as in most lines, got 3: 'New York B-LOC'",
        ),
        ("the\tO\nin\tO\nNew\tYork\tB-LOC\n", Options(), r":3: expected 2 columns, as in most lines, got 3"),
        ("the|O\nin|O\nNew|York|B-LOC\n", Options(separator="|"), r":3: expected 2 columns, as in most lines, got 3"),
        ("the DT O\nin IN O\nYork B-LOC\n", Options(), r":3: expected 3 columns, as in most lines, got 2"),
    ],
)
def test_lines_with_another_number_of_columns_are_refused(tmp_path, text, columns, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, text, columns=columns)


def test_words_to_tag_with_spaces_are_refused_and_not_cut(tmp_path):
    with pytest.raises(ValueError, match=r"new\.txt:2: expected 1 columns, as in most lines, got 2: 'New York'"):
        conll.read_to_tag(write(tmp_path, "in\nNew York\nnow\n", "new.txt"), Options(), pytest.fail)
    (sentence,) = conll.read_to_tag(
        write(tmp_path, "# from the web\nin\n#now\n", "new.txt"), Options(), pytest.fail
    ).sentences
    assert sentence.words == ("in", "#now")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("word\ttag\nthe\tO\nYork\tLOC\n", 1),
        ("Token NER_Tag\nthe O\nYork LOC\n", 1),
        ("\nForm\tPOS\tLabel\nthe\tDT\tO\nYork\tNN\tLOC\n", 2),
        ("-DOCSTART- O\nwords labels\n\nthe O\nYork LOC\n", 2),
        ("#word tag\nthe O\nYork LOC\n", 1),
        ("Wort\tTag\nthe\tO\nYork\tLOC\n", 1),
        ("Token Klasse\nthe O\nYork LOC\n", 1),
        ("NER\tToken\nO\tthe\nLOC\tYork\n", 1),
        ("the O\nWord Tag\nYork LOC\n", 2),
    ],
)
def test_names_of_columns_are_no_words(tmp_path, text, line):
    notes, columns = [], Options(word_column=1, tag_column=0) if text.startswith("NER") else Options()
    assert read(tmp_path, text, columns=columns, notes=notes) == [[("the", "O"), ("York", "LOC")]]
    assert f":{line}: names of columns, left out" in notes[0]


def test_names_of_columns_in_joined_files_are_counted_and_a_word_with_a_tag_of_others_is_a_word(tmp_path):
    notes = []
    assert read(tmp_path, "word tag\nthe O\n\nword tag\nYork LOC\n", notes=notes) == [[("the", "O")], [("York", "LOC")]]
    assert notes == [f"{tmp_path}/train.conll:1: names of columns, left out, as is 1 more"]
    assert read(tmp_path, "Text class\nthe O\nIt class\n")[0][0] == ("Text", "class")


KAGGLE = [[("Thousands", "O"), ('"', "O"), ("London", "B-geo")], [("Iranian,", "B-gpe")]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.csv",
            'Sentence #,Word,POS,Tag\nSentence: 1,Thousands,NNS,O\n,"""",``,O\n,London,NNP,B-geo\n'
            'Sentence: 2,"Iranian,",JJ,B-gpe\n',
        ),
        (
            "a.csv",
            '"",sentence_idx,word,tag\n0,1.0,Thousands,O\n1,1.0,"""",O\n2,1.0,London,B-geo\n3,2.0,"Iranian,",B-gpe\n',
        ),
        ("a.csv", 'Sentence;Word;Tag\n1;Thousands;O\n1;"""";O\n1;London;B-geo\n2;Iranian,;B-gpe\n'),
        ("a.csv", 'word,tag\nThousands,O\n"""",O\nLondon,B-geo\n,\n"Iranian,",B-gpe\n'),
        (
            "a.tsv",
            'Sentence #\tWord\tPOS\tTag\nSentence: 1\tThousands\tNNS\tO\n\t"\t``\tO\n\tLondon\tNNP\tB-geo\n'
            "Sentence: 2\tIranian,\tJJ\tB-gpe\n",
        ),
    ],
)
def test_tables_of_words_have_sentences_by_their_numbers(tmp_path, name, text):
    assert read(tmp_path, text, name) == KAGGLE
    assert conll.read_sentences(str(tmp_path / name)).sentences[0].line == 2


def test_tables_of_words_without_tags_are_words_to_tag_and_others_are_refused(tmp_path):
    path = write(tmp_path, "Sentence #,Word\nSentence: 1,In\n,Rome\nSentence: 2,No\n", "new.csv")
    assert [s.words for s in conll.read_to_tag(path, Options(), pytest.fail).sentences] == [("In", "Rome"), ("No",)]
    with pytest.raises(ValueError, match=r"new\.csv:2: column 2 \(tag\) is missing, the line has 2"):
        conll.read_sentences(path)
    for text in ("EU,B-ORG\nsaid,O\n", "id,content\n1,EU said\n"):
        with pytest.raises(ValueError, match=r"new\.csv: expected columns named word .* options\.separator=, reads"):
            conll.read_to_tag(write(tmp_path, text, "new.csv"), Options(), pytest.fail)
    assert read(tmp_path, "EU,B-ORG\nsaid,O\n", "a.csv", Options(separator=","))[0][0] == ("EU", "B-ORG")
    assert read(tmp_path, "EU\tB-ORG\nsaid\tO\n", "a.csv")[0][0] == ("EU", "B-ORG")


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("PER-B PER-I O LOC-B", ["B-PER", "I-PER", "O", "B-LOC"]),
        ("PER-S O LOC-B LOC-E", ["S-PER", "O", "B-LOC", "E-LOC"]),
        ("per-name-B O O O", ["B-per-name", "O", "O", "O"]),
        ("B-E I-E O B-B", ["B-E", "I-E", "O", "B-B"]),
        ("hepatitis-B hepatitis-C O LOC", ["hepatitis-B", "hepatitis-C", "O", "LOC"]),
    ],
)
def test_letters_behind_types_are_those_of_a_scheme_if_all_tags_have_one(tmp_path, tags, wanted):
    ((*pairs,),) = read(tmp_path, "".join(f"w {tag}\n" for tag in tags.split()))
    assert [tag for _, tag in pairs] == wanted


def test_letters_behind_other_marks_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"conll:1: expected a tag such as O, B-PER or I-PER, got 'PER_B'"):
        read(tmp_path, "a PER_B\nb O\nc PER_I\n")


CONLL_2012 = (
    "#begin document (bc/x); part 000\nbc/x 0 0 In IN (TOP(PP* - - - A * -\n"
    "bc/x 0 1 Rome NNP *)) - - - A (GPE) -\n\n#end document\n"
)
PUBTATOR = "123|t|A gene.\n123|a|It is one.\n123\t2\t6\tgene\tGene\t7\n\n"
UNIVERSAL = (
    "# sent_id = 1\n# text = Rome fell\n1\tRome\tRome\tPROPN\t_\t_\t2\tnsubj\t_\t_\n"
    "2\tfell\tfall\tVERB\t_\t_\t0\troot\t_\t_\n\n"
)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONLL_2012, "got CoNLL-2012: write the brackets of its entities"),
        (CONLL_2012.partition("\n")[2], "got CoNLL-2012"),
        (PUBTATOR, "got PubTator: write JSON lines"),
        ("#FORMAT=WebAnno TSV 3.3\n\n1-1\t0-4\tRome\tLOC\n", "got WebAnno TSV: export it"),
        ('<?xml version="1.0"?>\n<a b="c">Rome</a>\n', "got XML"),
        (UNIVERSAL, r"expected options\.word_column=1 and options\.tag_column=3 .* for CoNLL-U, got 0 and -1"),
        ("".join(UNIVERSAL.splitlines(True)[2:]), "for CoNLL-U, got 0 and -1"),
    ],
)
def test_files_of_other_forms_are_named_with_the_way_to_convert_them(tmp_path, text, message, plain):
    for reads in (conll.read_sentences, lambda path, columns: conll.read_to_tag(path, columns, pytest.fail).sentences):
        with pytest.raises(ValueError, match=f"train.conll: .*{message}") as error:
            reads(write(tmp_path, text), Options(scheme="plain" if plain else "iob2"))
        assert "scheme=plain" not in str(error.value)


def test_universal_dependencies_are_known_by_their_lines_and_words_may_have_spaces(tmp_path):
    text = UNIVERSAL.replace("1\tRome", "1-2\tRome fell\t_\t_\t_\t_\t_\t_\t_\t_\n1\tRome")
    columns = Options(word_column=1, tag_column=3, scheme="plain")
    assert read(tmp_path, text, columns=columns) == [[("Rome", "PROPN"), ("fell", "VERB")]]
    text = "1\tHà Nội\tHà Nội\tPROPN\t_\t_\t0\troot\t_\t_\n"
    assert read(tmp_path, text, "vi.conllu", columns) == [[("Hà Nội", "PROPN")]]


def test_comments_are_no_words_of_files_to_tag_or_with_plain_tags(tmp_path):
    text = "#\thttp://a.b/c [2009-10-17]\n1\tDer\tDT\n2\t#tag\tNN\n\n"
    assert read(tmp_path, text, columns=Options(word_column=1, scheme="plain")) == [[("Der", "DT"), ("#tag", "NN")]]
    (sentence,) = conll.read_to_tag(
        write(tmp_path, text), Options(word_column=1, scheme="plain"), pytest.fail
    ).sentences
    assert sentence.tags == ("DT", "NN")
