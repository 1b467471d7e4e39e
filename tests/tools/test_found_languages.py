"""The language of each file of a corpus is recognised and said; sentences end by its rules."""

import json

import py3langid
import pytest
from commands import run_here

from official_bert.data.raw_text import languages
from official_bert.tools.corpus import found_languages

RUSSIAN = (
    "Завод построили в 1932 г. на берегу реки. Его директором был инженер А. С. Петров из Москвы. "
    "Рабочие жили рядом, на ул. Ленина, в новых домах. Позже завод расширили, и он стал крупнейшим в области.\n"
)
ENGLISH = "The mill was built by the river. Its owner was an engineer from the north. Later it was enlarged.\n"
VIETNAMESE = "Tôi bán bàn cho bạn của tôi ở chợ. Bạn tôi bán sách ở gần nhà. Chúng tôi đọc sách mỗi ngày.\n"


@pytest.mark.parametrize(("text", "language"), [(RUSSIAN, "ru"), (ENGLISH, "en"), (VIETNAMESE, "vi")])
def test_a_paragraph_is_enough(text, language):
    label, share = found_languages.of_text(text)
    assert label == language and share > 0.95


def test_text_without_words_is_not_sure():
    assert found_languages.of_text("1 + 1 = 2\n") == (found_languages.DEFAULT, 0.0)
    assert found_languages.of_text("x = 5; y = 7")[1] == 0.0
    share = found_languages.of_text("aaa bbb ccc " * 20)[1]
    assert 0 < share < found_languages.SURE


def test_every_language_of_the_model_has_rules_for_sentences():
    assert {label for label, _ in py3langid.rank("a")} <= set(languages.RULES)


def test_files_between_two_of_other_languages_are_each_looked_at(tmp_path, monkeypatch):
    texts = [RUSSIAN] * 4 + [ENGLISH] * 5
    paths = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts):
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(found_languages, "LOOKED_AT", 2)
    monkeypatch.setattr(found_languages, "FEW", 2)
    codes, lines = found_languages.of_files([str(path) for path in paths], "auto", "text", "")
    assert codes == ["ru"] * 4 + ["en"] * 5
    assert lines[2] == "2 more files: ru (at least 100% sure)" and len(lines) == 6


def test_the_command_cuts_each_file_by_its_own_language(tmp_path):
    (tmp_path / "a.txt").write_text(RUSSIAN * 3, encoding="utf-8")
    escaped = json.dumps({"text": RUSSIAN * 3}) + "\n"  # in ASCII
    (tmp_path / "b.jsonl").write_text(escaped, encoding="ascii")
    (tmp_path / "c.txt").write_text(ENGLISH * 3, encoding="utf-8")
    (tmp_path / "d.txt").write_text("x = 1. y = 2. z = 3.\n", encoding="utf-8")
    command = ["tools/prepare_corpus.py", f"--input_file={tmp_path}/*.*", "--num_workers=1", "--keep_everything"]
    done = run_here(*command, f"--output_file={tmp_path}/out/c.out")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [f"{tmp_path}/a.txt: ru (100% sure)", f"{tmp_path}/b.jsonl: ru (100% sure)"] == lines[:2]
    assert f"{tmp_path}/d.txt: en (0% sure); ru is used because that is uncertain, --language=... sets another" in lines
    prepared = (tmp_path / "out/c.out").read_text(encoding="utf-8")
    # by English rules "1932 г." and "ул." end sentences
    assert prepared.count("Завод построили в 1932 г. на берегу реки.\n") == 6
    assert prepared.count("на ул. Ленина, в новых домах.\n") == 6
    given = run_here(*command, f"--output_file={tmp_path}/out/e.out", "--language=en")
    assert given.returncode == 0 and "sure" not in given.stdout
    assert "1932 г.\n" in (tmp_path / "out/e.out").read_text(encoding="utf-8")


def test_standard_input_is_not_recognised_and_says_so(tmp_path):
    command = ["tools/prepare_corpus.py", "--input_file=-", f"--output_file={tmp_path}/c.out", "--num_workers=1"]
    done = run_here(*command, typed=RUSSIAN)
    assert done.returncode == 0, done.stderr
    assert "standard input: en, not recognised; --language=... sets another" in done.stdout
