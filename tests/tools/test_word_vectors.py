"""Word vectors as people publish them."""

import gzip

import pytest

from official_bert.tools.resizing.word_vectors import read_vectors


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_published_forms_are_read(tmp_path):
    glove = write(tmp_path / "glove.txt", "the 0.5 -1e-2\n. . . 1 2\nThe 3 4\n\u00a0 5 6\nnew york 7 8 \n")
    found = read_vectors(glove, {"the", "new york", ". . .", "absent"})
    assert {word: vector.tolist() for word, vector in found.items()} == {
        "the": [0.5, -0.01],
        ". . .": [1.0, 2.0],
        "new york": [7.0, 8.0],
    }
    word2vec = write(tmp_path / "word2vec.txt", "2 3\nThe\t1\t2\t3\nthe 4 5 6\n")
    assert read_vectors(word2vec, {"the"}, lower=True)["the"].tolist() == [1.0, 2.0, 3.0]
    assert read_vectors(word2vec, {"the"})["the"].tolist() == [4.0, 5.0, 6.0]


def test_words_lose_the_accents_that_a_lower_cased_vocabulary_lacks(tmp_path):
    path = write(tmp_path / "vectors.txt", "\u00dcber 1 2\nuber 3 4\ncafe\u0301 5 6\n\u4e2d 7 8\nO'Neil 9 0\n")
    wanted = {"uber": [1.0, 2.0], "cafe": [5.0, 6.0], "\u4e2d": [7.0, 8.0], "o'neil": [9.0, 0.0]}
    assert {word: vector.tolist() for word, vector in read_vectors(path, wanted, lower=True).items()} == wanted
    assert sorted(read_vectors(path, {"\u00dcber", "uber"})) == ["uber", "\u00dcber"]


def test_packed_files_are_read_and_broken_ones_refused(tmp_path):
    packed = gzip.compress(b"the 1 2 3\nof 4 5 6\n" * 100)
    (tmp_path / "vectors.txt.gz").write_bytes(gzip.compress("the 1 2\nété 4 5\n".encode()))
    found = read_vectors(str(tmp_path / "vectors.txt.gz"), {"the", "été"})
    assert {word: vector.tolist() for word, vector in found.items()} == {"the": [1.0, 2.0], "été": [4.0, 5.0]}
    for name, content in (("cut.gz", packed[:-9]), ("text.gz", b"the 1 2\n"), ("changed.gz", packed[:-8] + bytes(8))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: not a whole gzip file"):
            read_vectors(str(tmp_path / name), {"the"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("the 1 2\nof 1\n", r"vectors\.txt:2: expected a word and 2 numbers, got 'of 1'"),
        ("the 1 x\n", r"vectors\.txt:1: expected 2 numbers, got '1 x'"),
        ("the 1 nan\n", r"vectors\.txt:1: expected finite numbers"),
        ("the\n", r"vectors\.txt:1: expected a word and 2 numbers"),
        ("", r"vectors\.txt: no word vector in this file"),
        ("3 300\n", "no word vector"),
    ],
)
def test_a_broken_file_is_told_with_its_line(tmp_path, text, told):
    with pytest.raises(ValueError, match=told):
        read_vectors(write(tmp_path / "vectors.txt", text), {"the", "of"})
