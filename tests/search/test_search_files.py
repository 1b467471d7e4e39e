"""Rows and collections of search are checked as they are read."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from official_bert.data.rows import Rows
from official_bert.data.tabular.tables import TableOptions
from official_bert.search.collections import files_of, is_collection, judgements_of, read_collection
from official_bert.search.rows import SearchColumns, read_candidates, read_rows

COLUMNS = {"text": "query", "text_pair": "passage"}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def read(path, warnings=None, **columns):
    return read_rows(
        path,
        SearchColumns(**COLUMNS, **columns),
        "refuse",
        TableOptions(),
        (warnings if warnings is not None else []).append,
    )


def test_any_number_of_negatives_in_columns_and_lists(tmp_path):
    path = write(
        tmp_path / "train.jsonl",
        [
            {"query": "a", "passage": "b", "more": ["c", "d"], "one": "e"},
            {"query": "f", "passage": "g", "more": [], "one": None},
        ],
    )
    assert read(path, negatives=("one", "more")).choices == [("e", "c", "d"), ()]
    assert read(path, negatives=("one", "more"), most_negatives=2).choices == [("e", "c"), ()]
    (tmp_path / "train.tsv").write_text('query\tpassage\tmore\na\tb\t["c", "d"]\nf\tg\t\n')
    assert read(str(tmp_path / "train.tsv"), negatives=("more",)).choices == [("c", "d"), ()]


def test_teachers_scores_belong_to_the_texts_that_are_kept(tmp_path):
    path = write(
        tmp_path / "train.jsonl",
        [
            {"query": "a", "passage": "b", "n": ["c", "d"], "t": [9, 1, 2]},
            {"query": "f", "passage": "g", "n": ["h"], "t": [8, 3]},
        ],
    )
    np.testing.assert_allclose(read(path, negatives=("n",), teacher=("t",)).targets, [[9, 1, 2], [8, 3, 0]])
    np.testing.assert_allclose(read(path, negatives=("n",), teacher=("t",), most_negatives=1).targets, [[9, 1], [8, 3]])


def test_labels_make_rows_of_positives_with_all_negatives(tmp_path):
    rows = [("a", "b", 1), ("a", "c", 0), ("a", "d", 2), ("x", "c", 0), ("f", "g", 1)]
    path = write(tmp_path / "train.jsonl", [dict(zip(("query", "passage", "y"), row)) for row in rows])
    warnings = []
    found = read(path, warnings, label="y")
    assert (found.text, found.text_pair, found.choices) == (["a", "a", "f"], ["b", "d", "g"], [("c",), ("c",), ()])
    [warning] = warnings
    assert warning.endswith("train.jsonl:4: a query without a positive; left out")


@pytest.mark.parametrize(
    ("rows", "columns", "told"),
    [
        (
            [{"n": "c"}, {"n": ["c", "b"]}],
            {"negatives": ("n",)},
            r"train\.jsonl:2: expected negatives other than the positive, got 'b'",
        ),
        ([{"n": "a"}], {"negatives": ("n",)}, r"train\.jsonl:1: expected negatives other than the anchor, got 'a'"),
        ([{"n": ["c", 5]}], {"negatives": ("n",)}, r"train\.jsonl:1: column 'n': expected a text or a list of texts"),
        (
            [{"n": "c", "t": [1]}],
            {"negatives": ("n",), "teacher": ("t",)},
            r"jsonl:1: columns t: expected 2 numbers, .* got \[1\]",
        ),
        (
            [{"n": "c", "t": [1, "x"]}],
            {"negatives": ("n",), "teacher": ("t",)},
            r"jsonl:1: columns t: expected 2 numbers",
        ),
        *(
            (
                [{"n": "c", "t": [1, wrong]}],
                {"negatives": ("n",), "teacher": ("t",)},
                r"jsonl:1: columns t: expected 2 numbers",
            )
            for wrong in (10**400, 1e300, float("nan"), float("-inf"))
        ),
        (
            [{"y": 1}, {"y": 0}],
            {"label": "y"},
            r"train\.jsonl:2: expected negatives other than the positive in line 1, got 'b'",
        ),
        ([{"y": 0}], {"label": "y"}, "expected labels above 0 for pairs that belong together, got none"),
    ],
)
def test_wrong_rows_are_refused_with_their_line(tmp_path, rows, columns, told):
    path = write(tmp_path / "train.jsonl", [{"query": "a", "passage": "b"} | row for row in rows])
    with pytest.raises(ValueError, match=told):
        read(path, **columns)


def test_negatives_that_answer_in_another_row_are_left_out_and_told(tmp_path):
    path = write(
        tmp_path / "train.jsonl",
        [{"query": "a", "passage": "b", "n": ["c", "d", "d"]}, {"query": "a", "passage": "c", "n": "d"}],
    )
    warnings = []
    assert (
        read(path, warnings, negatives=("n",)).choices == [("d",), ("d",)]
        and "train.jsonl:1: repeated negatives" in warnings[0]
    )


FLAG = {"query": "a", "pos": ["b"], "neg": ["c", "d"]}
PASSAGES = [{"docid": "1", "title": "T", "text": "b"}, {"docid": "2", "title": "", "text": "c"}, {"text": "d"}]
TEVATRON = {"query_id": "1", "query": "a", "positive_passages": PASSAGES[:1], "negative_passages": PASSAGES[1:]}
DPR = {
    "question": "a",
    "answers": ["x"],
    "positive_ctxs": PASSAGES[:1],
    "negative_ctxs": PASSAGES[2:],
    "hard_negative_ctxs": PASSAGES[1:2],
}
USUAL = SearchColumns(text="text", text_pair="text_pair")


@pytest.mark.parametrize(("row", "positive"), [(FLAG, "b"), (TEVATRON, "T b"), (DPR, "T b")])
@pytest.mark.parametrize("form", ["lines", "list", "parquet", "rows"])
def test_published_rows_of_a_query_its_positives_and_its_negatives_are_read(tmp_path, row, positive, form):
    path = str(tmp_path / f"train.{'parquet' if form == 'parquet' else 'json'}")
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row | {next(iter(row)): "z"}]), path)
    elif form != "rows":
        (tmp_path / "train.json").write_text(json.dumps([row]) if form == "list" else json.dumps(row) + "\n")
    source = Rows("train", [row]) if form == "rows" else path
    found = read_rows(source, USUAL, "refuse", TableOptions(), pytest.fail)
    assert (found.text[0], found.text_pair[0], found.choices[0]) == ("a", positive, ("c", "d"))
    candidates = read_candidates(source, USUAL, "refuse", TableOptions(), pytest.fail)
    assert sorted(candidates[0].passages) == sorted([positive, "c", "d"])
    assert [candidates[0].passages[place] for place in candidates[0].grades] == [positive]


def test_each_positive_is_a_row_and_queries_without_one_are_left_out(tmp_path):
    rows = [FLAG | {"pos": ["b", "e"]}, FLAG | {"query": "z", "pos": []}, {"query": "q", "pos": ["r"], "neg": []}]
    warnings = []
    found = read_rows(write(tmp_path / "train.jsonl", rows), USUAL, "refuse", TableOptions(), warnings.append)
    assert (found.text, found.text_pair) == (["a", "a", "q"], ["b", "e", "r"])
    assert found.choices == [("c", "d"), ("c", "d"), ()]
    assert warnings == [f"{tmp_path}/train.jsonl:2: a query without a positive; left out"]
    for wrong, told in (
        (FLAG | {"pos": [3]}, "column 'pos': expected a text or a list"),
        (FLAG | {"neg": [{"title": "x"}, {"text": " "}]}, "column 'neg': expected a text or a list"),
        ({"query": "q", "pos": []}, "expected queries with positives in column 'pos', got none"),
    ):
        with pytest.raises(ValueError, match=told):
            read_rows(Rows("f", [wrong]), USUAL, "refuse", TableOptions(), [].append)


def test_the_columns_that_are_given_count_before_those_of_a_published_form(tmp_path):
    rows = Rows("f", [FLAG | {"text": "x", "text_pair": "y"}])
    assert read_rows(rows, USUAL, "refuse", TableOptions(), pytest.fail).text == ["x"]
    with pytest.raises(ValueError, match=r"f\[row 0\]: expected a key 'text', found 'query'"):
        read_rows(Rows("f", [{"query": "a", "positives": []}]), USUAL, "refuse", TableOptions(), pytest.fail)


def test_a_teachers_scores_belong_to_their_positives(tmp_path):
    row = FLAG | {"pos": ["b", "e"], "pos_scores": [9, 8], "neg_scores": [1, 2]}
    columns = SearchColumns(text="query", text_pair="pos", negatives=("neg",), teacher=("pos_scores", "neg_scores"))
    found = read_rows(Rows("f", [row]), columns, "refuse", TableOptions(), pytest.fail)
    np.testing.assert_allclose(found.targets, [[9, 1, 2], [8, 1, 2]])
    for wrong in ({"pos_scores": [9]}, {"pos_scores": 9}):
        with pytest.raises(ValueError, match="column 'pos_scores': expected only the scores of the 2 positives"):
            read_rows(Rows("f", [row | wrong]), columns, "refuse", TableOptions(), pytest.fail)


def make_collection(folder, corpus=(), queries=(), judgements=()):
    corpus = corpus or [
        {"_id": "p1", "title": "Title", "text": "one"},
        {"_id": "p2", "title": "", "text": "two"},
        {"_id": "p3", "text": "3"},
    ]
    folder.mkdir(exist_ok=True)
    write(folder / "corpus.jsonl", corpus)
    write(folder / "queries.jsonl", queries or [{"_id": "q1", "text": "first"}, {"_id": "q2", "text": "second"}])
    (folder / "qrels").mkdir(exist_ok=True)
    path = folder / "qrels" / "dev.tsv"
    path.write_text(
        "query-id\tcorpus-id\tscore\n" + "".join("\t".join(map(str, row)) + "\n" for row in judgements),
        encoding="utf-8",
    )
    return str(path)


def test_a_collection_is_read_by_numbers(tmp_path):
    path = make_collection(
        tmp_path / "set", judgements=[("q2", "p3", 2), ("q2", "p1", 1), ("q2", "p2", 0), ("q1", "p1", 0)]
    )
    warnings = []
    found = read_collection(path, "refuse", warnings.append)
    assert is_collection(path) and len(files_of(path)) == 3 and not is_collection(str(tmp_path / "train.tsv"))
    assert (found.queries, found.passages) == (["second"], ["Title one", "two", "3"])
    assert (found.relevant, found.irrelevant) == ([{2: 2, 0: 1}], [[1]])
    [warning] = warnings
    assert warning.endswith("dev.tsv:5: a query without a positive, 'q1'; left out")
    pairs = found.pairs()
    assert list(pairs.pairs()) == [("second", "3"), ("second", "Title one")] and pairs.choices == [("two",), ("two",)]


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (
            {"judgements": [("q1", "p1", 1), ("q1", "p9", 1)]},
            r"dev\.tsv:3: expected an id of corpus\.jsonl, got 'p9' \(1 such lines;",
        ),
        ({"judgements": [("q9", "p1", 1)]}, r"dev\.tsv:2: expected an id of queries\.jsonl, got 'q9'"),
        (
            {"judgements": [("q1", "p1", 1), ("q1", "p1", 2)]},
            r"dev\.tsv:3: expected one judgement of query 'q1' and passage 'p1'",
        ),
        ({"judgements": [("q1", "p1", "x")]}, r"dev\.tsv:2: column 'score': expected a whole number, got 'x'"),
        ({"judgements": [("q1", "p1", 0)]}, "expected judgements above 0, got none"),
        (
            {"judgements": [("q1", "p1", 1)], "corpus": [{"_id": "p1", "text": "a"}, {"_id": "p1", "text": "b"}]},
            r"corpus\.jsonl:2: expected unique _ids, got 'p1', which line 1 has too",
        ),
        (
            {"judgements": [("q1", "p1", 1)], "corpus": [{"_id": "p1", "text": None}]},
            r"corpus\.jsonl:1: expected an _id and a text",
        ),
    ],
)
def test_damaged_collections_are_refused_with_file_and_line(tmp_path, parts, told):
    with pytest.raises(ValueError, match=told):
        read_collection(make_collection(tmp_path / "set", **parts), "refuse", print)


def test_unknown_ids_can_be_left_out(tmp_path):
    path = make_collection(tmp_path / "set", judgements=[("q1", "p9", 1), ("q1", "p1", 1)])
    warnings = []
    assert read_collection(path, "skip", warnings.append).relevant == [{0: 1}] and "dev.tsv:2" in warnings[0]


def test_the_passage_with_the_id_of_a_query_is_no_answer_to_it(tmp_path):
    judgements = [("p1", "p2", 1), ("q1", "p1", 1), ("p3", "p3", 1), ("p3", "p1", 1)]
    path = make_collection(
        tmp_path / "set", queries=[{"_id": name, "text": name} for name in ("p1", "q1", "p3")], judgements=judgements
    )
    warnings = []
    found = read_collection(path, "refuse", warnings.append)
    assert found.own == [0, -1, 2]
    assert found.without_own([[0, 1, 2], [0, 1, 2], [1, 0, 2]], 2) == [[1, 2], [0, 1], [1, 0]]
    assert len(warnings) == 1 and "query 'p3' is judged to be answered by the passage with its own id" in warnings[0]
    usual = read_collection(make_collection(tmp_path / "usual", judgements=[("q1", "p1", 1)]), "refuse", print)
    assert usual.own == () and usual.without_own([[0, 1, 2]], 2) == [[0, 1]]


def test_a_folder_stands_for_its_judgements(tmp_path):
    path = make_collection(tmp_path / "set", judgements=[("q1", "p1", 1)])
    assert judgements_of(str(tmp_path / "set"), "dev") == path and judgements_of(path, "train") == path
    with pytest.raises(
        ValueError, match=r"set/qrels/train\.tsv: no such file; expected the judgements .* qrels/ has dev\.tsv"
    ):
        judgements_of(str(tmp_path / "set"), "train")
