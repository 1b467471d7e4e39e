"""What prepare_corpus takes for text: in every encoding, and no tables, tagged words or packed documents."""

import pytest
from commands import run_here

from official_bert.data.raw_text import documents
from official_bert.data.raw_text.tables_as_text import foreign_form

SENTENCE = "La contaminación del agua preocupa mucho a la gente de esta ciudad."


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-le", "cp037"])
def test_text_in_another_encoding_is_read_if_it_is_named(tmp_path, encoding):
    (tmp_path / "in.txt").write_bytes("\n".join([SENTENCE] * 3).encode(encoding))
    command = [
        "tools/prepare_corpus.py",
        f"--input_file={tmp_path}/in.txt",
        f"--output_file={tmp_path}/c.txt",
        "--num_workers=1",
    ]
    done = run_here(*command, f"--encoding={encoding}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "c.txt").read_text(encoding="utf-8") == "\n".join([*[SENTENCE] * 3, "", ""])
    done = run_here(*command)
    if encoding != "cp037":  # which nobody recognises
        assert done.returncode == 1 and "in.txt:1: not valid UTF-8" in done.stderr
        assert f"--encoding={encoding}" in done.stderr
    done = run_here(*command, "--encoding=utf-32")
    assert done.returncode == 1 and "in.txt:1: not valid utf-32 near this line: " in done.stderr
    done = run_here(*command, "--encoding=klingon")
    assert done.returncode == 1 and "--encoding=klingon: expected an encoding that Python knows" in done.stderr


TABLES = {
    "a.conllu": (
        "# text = It rained.\n1\tIt\tit\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\trained\train\tVERB\t_\t_\t0\troot\t_\t_\n",
        "CoNLL-U, a word a line; run_finetuning --task=ner reads it",
    ),
    "b.txt": ("EU NNP B-ORG\nrejects VBZ O\n. . O\n\nPeter NNP B-PER\n", "tagged words, one a line; run_finetuning"),
    "c.csv": (
        'id,text\n1,"It rained, and\nit was cold."\n2,It was sunny.\n3,It was dark.\n',
        "a table of 2 columns; python -c",
    ),
    "d.txt": ("name;text\na;Es regnet.\nb;Es schneit.\nc;Es taut.\n", "sep=';'"),
    "e.tsv": ("1\tIt rained.\t0\n2\tIt was cold.\t1\n3\tIt was dark.\t1\n", "a table of 3 columns"),
    "w.xlsx": ("PK\x03\x04", "a workbook; python -c"),
    "g.csv": ("id, text\n1, It rained.\n2, It was cold.\n", "a table of 2 columns"),
    "h.tsv": ('1\t"It rained\t0\n2\tIt was "cold".\t1\n3\tIt was dark.\t1\n', "a table of 3 columns"),
    "f.pdf": ("%PDF-1.7\n%\u00e2\u00e3\n", "a PDF; pdftotext makes text of it"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_and_tagged_words_are_no_text(tmp_path, name):
    content, told = TABLES[name]
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    done = run_here(
        "tools/prepare_corpus.py",
        f"--input_file={tmp_path}/{name}",
        f"--output_file={tmp_path}/out/c.txt",
        "--num_workers=1",
    )
    assert done.returncode == 1 and told in done.stderr and f"{name}: expected a format of --format, got" in done.stderr
    with pytest.raises(ValueError, match=r"with a sentence on each line, got"):
        documents.check_prepared(name, content.encode())


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world.\nIt rained, and so on.\nThen, it was dark.\n",
        "\tIt rained.\n\tIt was cold.\n\tIt was dark.\n",
        "One.\n",
        "A | B is a sign.\nC | D too.\nE | F.\n",
        "I said O\nYou said O\nthey said no\n",
        "1,000 people came.\n2,000 left.\n3,000 stayed.\n",
    ],
)
def test_text_with_commas_and_tabs_is_text(text):
    assert not foreign_form("a.txt", text.splitlines())
