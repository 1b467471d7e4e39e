import bz2
import contextlib
import gzip
import json
import lzma
import time

import made_text
import pytest

from official_bert.data.pretraining.yield_report import YieldReport, present
from official_bert.data.raw_text import containers, documents, running_text
from official_bert.data.raw_text.sentence_splitting import split_sentences

WIKIPEDIA = """<doc id="1" url="http://x/1" title="Tea">
Tea

Tea is a drink made from the leaves of a plant. It is drunk all over the world, hot or cold.
Early history.
BULLET::::- Green tea
The plant comes from the borderlands of south-western China and northern Burma. Dr. Fu wrote of it.
</doc>
<doc id="2" url="http://x/2" title="Stub">
Stub

A stub has a single sentence of text, and so it goes.
</doc>
"""
BOOK = (
    "\ufeffCHAPTER I\r\n\r\n"
    + "\r\n".join(
        [
            "It was a bright cold morning in the little town, and the baker was",
            "opening his shutters when the first of the carts came down the hill",
            "from the mill. Nobody else was awake. The baker looked at the sky and",
            "shook his head, for he had seen such mornings turn to rain before the",
            "church clock struck ten, and rain was bad for trade in every season of",
            "the year.",
            "",
            "He went in again, and lit the second oven, and waited for his boy who",
            "was late as always, and who would say as always that the clock at home",
            "had stopped. It had not. The boy had lain in bed and listened to it as",
            "it struck five, and six, and the half after six, and then had run all",
            "the way.",
        ]
    )
    + "\r\n"
)


def read(tmp_path, name, data, **settings):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return list(documents.read_documents(str(path), **settings))


def paragraphs(*arguments, **settings):
    return [document.paragraphs for document in read(*arguments, **settings)]


def clean(document, **settings):
    return made_text.clean(documents.Cleaner(**settings), document, YieldReport())


def test_wikipedia_articles_lose_titles_headings_and_lists(tmp_path):
    tea, stub = read(tmp_path, "wiki_00", WIKIPEDIA)
    assert clean(tea) == [
        "Tea is a drink made from the leaves of a plant.",
        "It is drunk all over the world, hot or cold.",
        "The plant comes from the borderlands of south-western China and northern Burma.",
        "Dr. Fu wrote of it.",
    ]
    assert clean(stub) == []
    assert clean(stub, shortest=1) == ["A stub has a single sentence of text, and so it goes."]


def test_a_hard_wrapped_book_with_crlf_and_bom_becomes_sentences(tmp_path):
    [book] = read(tmp_path, "book.txt", BOOK)
    sentences = clean(book)
    assert sentences[1] == "Nobody else was awake."
    assert sentences[2] == (
        "The baker looked at the sky and shook his head, for he had seen such mornings turn to rain "
        "before the church clock struck ten, and rain was bad for trade in every season of the year."
    )
    assert len(sentences) == 6 and not any("CHAPTER" in sentence or "\r" in sentence for sentence in sentences)


def test_documents_between_blank_lines_are_one_each(tmp_path):
    data = "\n\nFirst line.\r\nSecond line.\n \n\nOther document.\n"
    assert paragraphs(tmp_path, "a.txt", data, form="documents") == [
        ["First line.", "Second line."],
        ["Other document."],
    ]


def test_a_file_of_any_size_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MOST_CHARACTERS", 30)
    lines = [f"This is line {number}." for number in range(7)]
    parts = paragraphs(tmp_path, "a.txt", "\n".join(lines), form="text")
    assert [len(part) for part in parts] == [2, 2, 2, 1] and [line for part in parts for line in part] == lines


def test_json_lines_are_a_document_each(tmp_path):
    rows = [{"body": "One sentence here.\nAnother paragraph there."}, {"body": "Alone."}]
    data = "\n".join(map(json.dumps, rows)) + "\n"
    assert paragraphs(tmp_path, "a.jsonl", data, text_key="body") == [
        ["One sentence here.", "Another paragraph there."],
        ["Alone."],
    ]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ('{"text": "a"}\n{"text": 3}\n', "a.jsonl:2: expected an object with a string 'text', got ['text']"),
        ('{"text": "a"}\n\n{nonsense\n', "a.jsonl:3: not valid JSON"),
        (b"{\xff}\n", "a.jsonl:1: not valid UTF-8 at byte 1 of the file (0xff)"),
    ],
)
def test_broken_lines_are_named(tmp_path, data, told):
    with pytest.raises(ValueError) as error:
        paragraphs(tmp_path, "a.jsonl", data)
    assert told in str(error.value)


def test_bad_bytes_are_named_by_their_place_in_the_file_or_replaced(tmp_path):
    data = b"\xef\xbb\xbfgood line\nbad \xe9 line\n"
    with pytest.raises(ValueError, match=f"not valid UTF-8 at byte {data.index(0xE9)} "):
        paragraphs(tmp_path, "a.txt", data, form="text")
    assert paragraphs(tmp_path, "a.txt", data, bad=containers.BadText("replace")) == [["good line", "bad \ufffd line"]]


@pytest.mark.parametrize(
    ("paragraph", "kept"),
    [
        ("This is a sentence of running text.", True),
        ("他是一個好人，住在北京。", True),
        ("A heading without an end", False),
        ("* an item of a list, even with a full stop.", False),
        ("12. Another item, of another list.", False),
        ("| a | table | row |", False),
        ("1901 12 13 1902 14 15 1903 17 18.", False),
        ("“Quoted speech ends thus.”", True),
        ("ไทยไม่มีจุด" * 30, True),
        ("Yes.", False),
    ],
)
def test_running_text_is_told_from_debris(paragraph, kept):
    assert (not running_text.ParagraphFilter().reason_to_drop(paragraph)) is kept


def test_sentences_end_by_the_rules_of_the_language():
    assert split_sentences("他來了。他走了！", "zh") == ["他來了。", "他走了！"]
    german = ["Das ist z.B. ein Satz.", "Noch einer."]
    assert split_sentences(" ".join(german), "de") == german


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b'\n<doc id="1" url="u" title="t">\nA line.\n', "got WikiExtractor's output"),
        (b'\xef\xbb\xbf{"id": 1, "text": "A', "got JSON lines"),
        (gzip.compress(b"A line.", mtime=0), "got a compressed file; tools/prepare_corpus.py"),
        (bz2.compress(b"A line."), "got a compressed file"),
        (lzma.compress(b"A line."), "got a compressed file"),
        (b"{ a set } was drawn .\n", ""),
        (b"A line.\n<doc id=", ""),
        (b"", ""),
    ],
)
def test_raw_text_is_told_from_prepared_text(head, told):
    with (
        pytest.raises(ValueError, match=f"a: expected text with a sentence on each line, {told}")
        if told
        else contextlib.nullcontext()
    ):
        documents.check_prepared("a", head)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (json.dumps([{"text": "A sentence. Another one."}] * 3, indent=1), "a JSON array; jq"),
        (json.dumps([{"text": "A sentence. Another one."}] * 3), "a JSON array; jq"),
        (
            '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">\n  <page>\n',
            "an XML dump of MediaWiki; WikiExtractor",
        ),
    ],
)
def test_dumps_are_no_text(tmp_path, data, told):
    with pytest.raises(ValueError, match=f"dump: expected a format of --format, got {told}"):
        read(tmp_path, "dump", data)
    with pytest.raises(ValueError, match=f"dump: expected text in UTF-8 with a sentence on each line, got {told}"):
        documents.check_prepared("dump", data.encode())
    assert paragraphs(tmp_path, "dump", data, form="text") == [data.splitlines()]


def test_text_in_utf_16_is_refused_whatever_is_done_with_bad_text():
    with pytest.raises(ValueError, match="a: expected text in UTF-8 with a sentence on each line, got UTF-16"):
        documents.check_prepared("a", "A line.".encode("utf-16"))


ESCAPED = """<doc id="1" url="http://x/1" title="R&amp;B">
R&amp;B

Rhythm &amp; blues &lt;ref name="a"&gt; is &quot;music&quot; of the 1940s,&lt;br /&gt;as AT&amp;amp;T&#39;s records tell.&lt;!-- sic --&gt;
Here 1 &lt; 2, a &lt;b and c&gt; d, and p&copy=1 stay, and so does &nosuchname; as it is.
</doc>
"""
UNESCAPED = [
    'Rhythm & blues is "music" of the 1940s, as AT&amp;T\'s records tell.',
    "Here 1 < 2, a <b and c> d, and p&copy=1 stay, and so does &nosuchname; as it is.",
]


def test_entities_of_wikiextractor_are_characters_and_left_over_tags_go(tmp_path):
    row = {"id": "1", "revid": "7", "url": "http://x/1", "title": "R&B", "text": "\n".join(ESCAPED.splitlines()[3:5])}
    for name, data in (("wiki_00", ESCAPED), ("wiki.jsonl", json.dumps(row))):
        bad = containers.BadText()
        [article] = read(tmp_path, name, data, bad=bad)
        assert [" ".join(paragraph.split()) for paragraph in article.paragraphs if paragraph.strip()] == UNESCAPED
        counts = {event: reason.amounts for event, reason in bad.report.notes.items()}
        assert counts == {
            "entities of HTML replaced by their characters": {"entities": 14 + (name == "wiki_00")},
            "left-over tags removed": {"tags": 3},
        }
    assert article.title == "" and read(tmp_path, "wiki_00", ESCAPED)[0].title == "R&B"
    # Rows of others are text as they stand.
    assert paragraphs(tmp_path, "other.jsonl", json.dumps({"text": "a &amp; b"})) == [["a &amp; b"]]


def test_comments_without_an_end_take_linear_time():
    report, began = documents.YieldReport(), time.process_time()
    line = f"{'a<!--b-->' * 3}{'<!-- c ' * 100_000}"  # a minute, if each <!-- were searched for its end
    assert documents.without_markup(line, report) == f"aaa{'<!-- c ' * 100_000}"
    assert time.process_time() - began < 5 and report.notes[documents.TAGS].amounts == {"tags": 3}


BOOKS = """The Project Gutenberg eBook of One
This eBook is for the use of anyone anywhere.

*** START OF THE PROJECT GUTENBERG EBOOK ONE, WITH A TITLE
THAT IS LONG ***
First text of one.
*** START OF A FIGHT ***
Last text of one.
*** END OF THIS PROJECT GUTENBERG EBOOK ONE ***
START: FULL LICENSE
***START OF THE PROJECT GUTENBERG ETEXT TWO***
Text of two.
"""


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (BOOKS, ["First text of one.", "*** START OF A FIGHT ***", "Last text of one.", "Text of two."]),
        ("A text.\n*** END OF THE PROJECT GUTENBERG EBOOK A ***\nLicence.\n", ["A text."]),
        ("A text of Project Gutenberg.\nIts end.\n", ["A text of Project Gutenberg.", "Its end."]),
    ],
)
def test_project_gutenbergs_licence_is_removed_and_counted(tmp_path, data, kept):
    for name, text in (("a.txt", data), ("a.jsonl", json.dumps({"text": data}))):
        bad = containers.BadText()
        assert [[line for line in lines if line] for lines in paragraphs(tmp_path, name, text, bad=bad)] == [kept]
        counted = sum(reason.amounts["characters"] for reason in bad.report.dropped.values())
        assert counted == len("".join(data.split())) - len("".join("".join(kept).split()))
        assert set(bad.report.dropped) <= {"Project Gutenberg's licence"} and bad.report.lost_share("characters") == 0


def test_counts_of_what_was_replaced_are_shown(capsys):
    report = YieldReport()
    report.keep(characters=9)
    report.note("left-over tags removed", "<br>", tags=1234)
    present(report)
    assert capsys.readouterr().out == "kept: all 9 characters\nfound: left-over tags removed (1,234 tags)\n"
