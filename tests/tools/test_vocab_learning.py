import collections
import json
import shlex
import subprocess
import sys
import unicodedata

import pytest
from commands import run_here

from official_bert.text.tokenization import FullTokenizer
from official_bert.text.vocab import SPECIAL_TOKENS
from official_bert.tools.corpus import mixing
from official_bert.tools.vocabulary import vocab_learning


def test_words_are_counted_as_the_tokenizer_makes_them():
    counts = vocab_learning.count_words(["Café, CAFE!", "北京 cafe"])
    assert counts == {"cafe": 3, ",": 1, "!": 1, "北": 1, "京": 1}
    assert vocab_learning.count_words(["Café"], do_lower_case=False) == {"Café": 1}


def test_merges_are_those_worked_out_by_hand():
    # Pairs: l+o 7, o+w 7, w+e 3, e+r 3, n+e 2, e+w 2. Equal counts: the smaller pair of ids goes first.
    pieces = vocab_learning.learn_pieces({"low": 4, "lower": 3, "new": 2}, size=14)
    characters = ["e", "l", "n", "o", "r", "w", "##e", "##o", "##r", "##w"]
    assert pieces[:10] == characters
    assert pieces[10:] == ["lo", "low", "##er", "lower"]


def test_every_word_of_the_text_can_be_spelled(tmp_path, golden):
    lines = (golden / "text_a.txt").read_text(encoding="utf-8").splitlines()
    pieces = vocab_learning.learn_pieces(vocab_learning.count_words(lines), 400)
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(vocab_learning.make_vocab(pieces, num_unused=3)) + "\n", encoding="utf-8")
    tokenizer = FullTokenizer(str(path))
    tokens = [token for line in lines for token in tokenizer.tokenize(line)]
    assert "[UNK]" not in tokens and len(tokenizer.vocab) == 408
    assert list(tokenizer.vocab)[:8] == [
        "[PAD]",
        "[unused0]",
        "[unused1]",
        "[unused2]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]


def test_only_the_rarest_words_are_forgotten():
    counts = collections.Counter({"a": 1, "b": 2, "c": 2, "d": 3, "e": 9})
    vocab_learning.forget_rare_words({"": counts}, most=5)
    assert len(counts) == 5
    vocab_learning.forget_rare_words({"": counts}, most=3)
    assert counts == {"d": 3, "e": 9}


def test_memory_is_bounded_over_all_languages_and_what_is_forgotten_is_counted():
    counts = {
        "a": collections.Counter(dict.fromkeys(map(str, range(90)), 1) | {"x": 7}),
        "b": collections.Counter(y=1, z=2),
    }
    assert vocab_learning.forget_rare_words(counts, most=9) == 90
    assert counts == {"a": {"x": 7}, "b": {"y": 1, "z": 2}}


def test_characters_cover_the_wanted_share_of_words():
    counts = {"aa": 900, "ab": 95, "c": 4, "d": 1}  # frequencies: a 1895, b 95, c 4, d 1
    for coverage, characters in (
        (0.9, ["a"]),
        (0.91, ["a", "b"]),
        (0.995, ["a", "b"]),
        (0.999, ["a", "b", "c"]),
        (1.0, [*"abcd"]),
    ):
        assert vocab_learning.choose_characters(counts, coverage) == characters
    assert vocab_learning.choose_characters(counts, 1.0, most=2) == ["a", "b"]
    assert vocab_learning.unspelled_words(counts | {"a" * 201: 3}, ["a", "b"]) == {"c": 4, "a" * 201: 3, "d": 1}


def test_chinese_with_many_rare_ideographs_leaves_less_than_a_thousandth_unknown():
    # Zipf's law over 6,000 ideographs, as in real text: the first 1,000 cover 80 %.
    counts = {chr(0x4E00 + rank): max(1, 60_000 // (rank + 1)) for rank in range(6000)}
    characters = vocab_learning.choose_characters(counts)
    pieces = vocab_learning.learn_pieces(counts, 8000, characters=characters)
    lost = sum(vocab_learning.unspelled_words(counts, characters).values())
    assert lost <= 0.0005 * sum(counts.values()) and set(characters) <= set(pieces)
    most_frequent = vocab_learning.choose_characters(counts, 1.0, most=1000)
    assert sum(vocab_learning.unspelled_words(counts, most_frequent).values()) > 0.1 * sum(counts.values())


def test_rare_words_go_by_their_true_counts_before_counts_are_scaled(monkeypatch):
    monkeypatch.setattr(vocab_learning, "MOST_WORDS", 1000)
    counts = {"abab": 100_000} | {f"{a}{b}": 2 for a in "cdefgh" for b in "xyz"}
    pieces = vocab_learning.learn_pieces(counts, 40, min_frequency=1)
    assert pieces[-2:] == ["##ab", "abab"] or pieces[-3:] == ["ab", "##ab", "abab"]
    assert not any(len(piece.removeprefix("##")) == 2 and piece[-1] in "xyz" for piece in pieces)
    # A word that is seen once in a small language weighs 50 after smoothing, and is still a word that was seen once.
    smoothed = vocab_learning.learn_pieces({"aaaa": 50.0, "bbbb": 50.0}, 10, true_counts={"aaaa": 1, "bbbb": 9})
    assert "bbbb" in smoothed and "aa" not in smoothed and {"a", "##a"} <= set(smoothed)


def test_languages_are_smoothed_as_worked_out_by_hand():
    # Shares 0.9 and 0.1 become 0.9**0.5 and 0.1**0.5 renormalised: 0.75 and 0.25 of the 100 words.
    merged = mixing.smooth_languages({"en": {"a": 60, "b": 30}, "sw": {"c": 10}}, exponent=0.5)
    assert merged == pytest.approx({"a": 50.0, "b": 25.0, "c": 25.0})
    kept = mixing.smooth_languages({"en": {"a": 60, "b": 30}, "sw": {"b": 10}}, exponent=1.0)
    assert kept == pytest.approx({"a": 60, "b": 40})


def test_domain_words_are_those_that_save_the_most_tokens(tmp_path):
    (tmp_path / "v.txt").write_text("\n".join([*SPECIAL_TOKENS, "gene", "##s", "##tic", "known"]) + "\n")
    tokenizer = FullTokenizer(str(tmp_path / "v.txt"))
    # Pieces 2, 3 and [UNK] save 1, 2 and 1 tokens each time: 30, 2 * 20 and 35 in all; "tics" is too rare.
    counts = {"genes": 30, "genetics": 20, "zq": 35, "known": 99, "tics": 9}
    assert vocab_learning.choose_domain_words(counts, tokenizer, most=9) == ["genetics", "zq", "genes"]
    assert vocab_learning.choose_domain_words(counts, tokenizer, most=1) == ["genetics"]


def test_too_small_a_size_is_refused():
    with pytest.raises(ValueError, match="a vocabulary of 3 pieces cannot hold 4 characters and 1 continuing"):
        vocab_learning.learn_pieces({"ab": 3, "cb": 2, "d": 1}, 3)


def build(root, *arguments):
    return subprocess.run(
        [sys.executable, str(root / "tools/build_vocab.py"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_writes_the_same_file_in_every_process(root, golden, tmp_path):
    made = []
    for name, workers in (("a", 1), ("b", 2)):
        done = build(
            root,
            f"--input_file=en:{golden}/text_a.txt,xx:{golden}/text_b.txt",
            "--vocab_size=500",
            f"--output_file={tmp_path}/{name}.txt",
            "--num_unused=10",
            f"--num_workers={workers}",
        )
        assert done.returncode == 0, done.stderr
        made.append((tmp_path / f"{name}.txt").read_bytes())
    assert made[0] == made[1] and made[0].count(b"\n") == 500


def test_the_command_tells_a_mistake_in_one_line(golden, tmp_path):
    given = f"--input_file={golden}/text_a.txt", "--vocab_size=110", f"--output_file={tmp_path}/v.txt"
    done = run_here("tools/build_vocab.py", *given)
    assert done.returncode == 1 and "error: a vocabulary of 6 pieces cannot hold" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_the_command_accounts_for_words_and_warns_of_stripped_vowels(tmp_path):
    (tmp_path / "th.txt").write_text("ที่นี่ เมืองนี้ตั้งอยู่ทางฝั่งเหนือ\n" * 50 + "ฬ\n")
    done = run_here(
        "tools/build_vocab.py",
        f"--input_file={tmp_path}/th.txt",
        "--vocab_size=200",
        f"--output_file={tmp_path}/v.txt",
        "--num_unused=0",
        "--num_workers=1",
        "--character_coverage=0.98",
        f"--report_file={tmp_path}/r.json",
    )
    assert done.returncode == 0, done.stderr
    assert "warning: " in done.stderr and "accents and vowel signs that lower-casing deletes" in done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["yield"]["units"]["words"]["in"] == 101 and report["yield"]["units"]["words"]["dropped"] == 1
    [unknown] = [entry for name, entry in report["yield"]["dropped"].items() if "[UNK]" in name]
    assert unknown["examples"] == ["ฬ"]
    assert "no other pair of pieces occurs 2 times" in done.stdout


def test_words_are_those_of_the_tokenizer_line_by_line(golden):
    lines = (golden / "text_a.txt").read_text(encoding="utf-8").splitlines() + [
        "ΟΔΟΣ ΣΟΦΟΣ. 中文 a\u200bb\u2028c\x0bd",
        "bán\u00a0BÀN  b\u0323an\u0301 x≠y",
    ]
    for lower in (True, False):
        tokenizer = FullTokenizer(str(golden / "vocab_uncased.txt"), lower).basic_tokenizer
        expected = collections.Counter(word for line in lines for word in tokenizer.tokenize(line))
        assert vocab_learning.count_words(lines, lower) == expected


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_command_tells_which_words_lower_casing_makes_the_same(root, tmp_path, form):
    text = "Tôi bán bàn cho bạn. Bạn bán sách, tôi đọc sách.\n" * 20
    (tmp_path / "vi.txt").write_text(unicodedata.normalize(form, text), encoding="utf-8")
    arguments = [f"--input_file={tmp_path}/vi.txt", "--vocab_size=90", "--num_unused=0", "--num_workers=1"]
    done = build(root, *arguments, f"--output_file={tmp_path}/v.txt")
    # of 14 words and marks 5 become ban: twice bán, which counts as kept, twice bạn and once bàn
    assert done.returncode == 0 and "makes 3 different words the same as others: 21.4% of the words" in done.stderr
    assert "(bán, bạn, bàn -> ban)" in done.stderr and "kept: 760 of 960 characters" in done.stdout
    command = done.stderr.partition("To keep them: ")[2].strip()
    assert command.endswith("--do_lower_case=False") and f"--output_file={tmp_path}/v.txt" in command
    done = subprocess.run(shlex.split(command), check=True, capture_output=True, text=True, timeout=120)
    assert "lower-casing" not in done.stderr + done.stdout
    entries = {unicodedata.normalize("NFC", line) for line in (tmp_path / "v.txt").read_text("utf-8").split()}
    assert {"bán", "bàn", "bạn"} <= entries
