"""Units of masking that the text gives: words between separators or of a segmenter, phrases between marks; from the
text to the masks.
"""

import numpy as np
import pytest
import tensorflow as tf
from commands import run_here
from needed_tools import need

from official_bert.data.pretraining.dynamic_masking import DynamicMasking
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.data.pretraining.units import TextUnits, UnitTokenizer, WrongMarksError
from official_bert.data.record_files import records
from official_bert.text import loading

VOCAB = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"使用语言模型来预测下一个词的概率京北上海",
    "new",
    "york",
    "play",
    "##ing",
    "bert",
]
SIZE = len(VOCAB)


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    path = tmp_path_factory.mktemp("units") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("units", "line", "wanted"),
    [
        ({"word_separator": "/"}, "使用/语言/模型//", [("使用", 1), ("语言", 1), ("模型", 1)]),
        ({"word_separator": " "}, "使用 语言 ", [("使用", 1), ("语言", 1)]),
        ({"phrase_marks": ("[[", "]]")}, "in [[new york]] 使", [("in ", 0), ("new york", 1), (" 使", 0)]),
        (
            {"word_separator": "_", "phrase_marks": ("<", ">")},
            "使用_<语言_模型>来",
            [("使用", 1), ("语言 模型", 1), ("来", 1)],
        ),
        ({"word_separator": "/"}, "使用语言", [("使用语言", 0)]),
        ({"phrase_marks": ("<", ">")}, "", []),
    ],
)
def test_lines_are_divided_as_their_marks_say(units, line, wanted):
    assert list(TextUnits(**units).split_line(line)) == [(text, bool(unit)) for text, unit in wanted]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"word_separator": "--"}, "--word_separator: expected one character, got '--'"),
        ({"word_separator": "/", "segmenter": "jieba"}, "--segmenter=jieba: expected no --word_separator with it"),
        ({"phrase_marks": ("[[",)}, r"--phrase_marks: expected two different marks .* got '\[\['"),
        ({"phrase_marks": ("/", "|"), "word_separator": "/"}, "none of them the separator, got '/,|'"),
    ],
)
def test_marks_that_cannot_be_are_refused(changes, told):
    with pytest.raises(ValueError, match=told.replace("|", r"\|")):
        TextUnits(**changes)


def test_tokens_that_continue_a_unit_are_told_apart_and_lines_stay_what_they_are(vocab):
    tokenizer = UnitTokenizer(loading.load_lines(vocab, True), TextUnits(word_separator="/", phrase_marks=("<", ">")))
    encoded = tokenizer.encode_bytes("使用/语/playing\n\n/ \n的<New york>bert\n".encode())
    ids = [VOCAB.index(token) for token in ("使", "用", "语", "play", "##ing", "的", "new", "york", "bert")]
    continues = np.array([0, 1, 0, 0, 1, 0, 0, 1, 0])
    assert encoded.ids.tolist() == (np.array(ids) + SIZE * continues).tolist()
    assert encoded.lengths.tolist() == [5, 0, 0, 4] and encoded.blank.tolist() == [False, True, False, False]
    with pytest.raises(
        WrongMarksError, match="a phrase begins with < and does not end in its line: no phrase continues in another"
    ) as error:
        tokenizer.encode_bytes("使用\n的<New\nyork>".encode())
    assert error.value.offset == len("使用\n".encode())
    with pytest.raises(WrongMarksError, match="a phrase ends with > that has not begun"):
        tokenizer.encode_bytes(b"new>")


@pytest.mark.slow  # its dictionary takes seconds
def test_a_segmenter_gives_the_words():
    need("jieba")
    words = [text for text, unit in TextUnits(segmenter="jieba").split_line("使用语言模型来预测 BERT") if unit]
    assert "".join(words) == "使用语言模型来预测BERT" and "语言" in words and "预测" in words


TEXT = "使用/语言/模型/来/预测/下/一个/词/的/概率\n北京/new york/playing/上海/的/bert\n\n" * 30
WORDS = [
    ["使用", "语言", "模型", "来", "预测", "下", "一个", "词", "的", "概率"],
    ["北京", "new york", "play ##ing", "上海", "的", "bert"],
]
STARTS = [[1, 0, 1, 0, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1, 0], [1, 0, 1, 0, 1, 0, 1, 0, 1, 1]]


def make(folder, vocab, text, *flags):
    """Runs the command; returns what it printed, and its records as arrays."""
    (folder / "text.txt").write_text(text, encoding="utf-8")
    dynamic = "--masking=dynamic" in flags
    if not dynamic:
        flags = (*flags, "--max_predictions_per_seq=8", "--masked_lm_prob=0.3")
    done = run_here(
        "tools/create_pretraining_data.py",
        f"--input_file={folder}/text.txt",
        f"--output_file={folder}/records",
        f"--vocab_file={vocab}",
        "--max_seq_length=32",
        "--dupe_factor=2",
        "--num_workers=1",
        *flags,
    )
    if done.returncode:
        return done, {}
    table = records.unmasked_features(32) if dynamic else records.pretraining_features(32, 8)
    serialized = list(records.read_records(str(folder / "records")))
    return done, {name: value.numpy() for name, value in records.parse_examples(tf.constant(serialized), table).items()}


@pytest.mark.parametrize("task", ["none", "sop"])
def test_records_without_masks_say_where_units_begin(tmp_path, vocab, task):
    done, batch = make(tmp_path, vocab, TEXT, "--masking=dynamic", "--word_separator=/", f"--sentence_task={task}")
    assert batch, done.stderr
    assert batch["input_ids"].max() < SIZE
    whole = [
        [VOCAB.index(token) for word in words for token in " ".join(word if word[0] > "z" else [word]).split()]
        for words in WORDS
    ]
    found = 0
    for ids, starts in zip(batch["input_ids"].tolist(), batch["word_starts"].tolist()):
        for sentence, wanted in zip(whole, STARTS):
            for place in range(len(ids) - len(sentence)):
                if ids[place : place + len(sentence)] == sentence:
                    assert starts[place : place + len(sentence)] == wanted
                    found += 1
        second = ids.index(3) + 1
        # what is left of a unit that was cut begins anew
        assert starts[1] and (starts[second] or ids[second] in (0, 3))
    assert found > 20
    facts = VocabularyFacts.of(loading.load(vocab))
    masked = DynamicMasking(MaskingConfig(strategy="whole_word", rate=0.3), facts, 32, 8, 1)(
        {name: tf.constant(value) for name, value in batch.items()}, tf.range(len(batch["input_ids"]), dtype=tf.int64)
    )
    check_whole(batch["input_ids"], batch["word_starts"], masked)


def check_whole(ids, starts, masked):
    """Requires that units are predicted whole or not at all."""
    units = np.cumsum(starts, axis=1)
    real = (ids > 0) & (ids != 2) & (ids != 3)
    for row in range(len(ids)):
        used = np.array(masked["masked_lm_positions"][row])[np.array(masked["masked_lm_weights"][row]) > 0]
        assert len(used)
        chosen = np.isin(units[row], units[row][used]) & real[row]
        assert np.flatnonzero(chosen).tolist() == sorted(used.tolist())


@pytest.mark.parametrize("masking", ["whole_word", "span", "ngram"])
def test_units_are_masked_whole_in_records_with_masks_too(tmp_path, vocab, masking):
    (tmp_path / "plain").mkdir()
    flags = ("--phrase_marks=<,>", "--word_separator=/", "--sentence_task=none")
    text = TEXT.replace("语言/模型", "<语言/模型>")
    done, batch = make(tmp_path, vocab, text, f"--masking={masking}", *flags)
    assert batch, done.stderr
    _, plain = make(tmp_path / "plain", vocab, text, "--masking=dynamic", *flags)
    originals, places = batch["input_ids"].copy(), batch["masked_lm_positions"]
    rows = np.repeat(np.arange(len(places))[:, None], places.shape[1], axis=1)[batch["masked_lm_weights"] > 0]
    originals[rows, places[batch["masked_lm_weights"] > 0]] = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
    assert batch["input_ids"].max() < SIZE and batch["masked_lm_ids"].max() < SIZE
    begins = {tuple(ids): starts for ids, starts in zip(plain["input_ids"].tolist(), plain["word_starts"])}
    check_whole(originals, np.array([begins[tuple(ids)] for ids in originals.tolist()]), batch)


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        (
            "使用语言\n\n模型的\n",
            ["--masking=whole_word", "--word_separator=/"],
            "text.txt: expected units of several tokens, --word_separator=/, but the text has none",
        ),
        (
            "a [[new\nyork]] b\n",
            ["--masking=dynamic", "--phrase_marks=[[,]]"],
            "text.txt: at byte offset 0: a phrase begins with [[ and does not end in its line: no phrase continues in "
            "another record: 'a [[new'",
        ),
        ("使用/语言\n", ["--word_separator=/"], "expected another --masking than token with it"),
        ("使用/语言\n", ["--masking=dynamic", "--word_separator=/", "--engine=beam"], "--engine=local"),
    ],
)
def test_units_that_are_not_there_or_do_not_end_are_refused_in_one_line(tmp_path, vocab, text, flags, told):
    done, _ = make(tmp_path, vocab, text, *flags)
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: ") and not (tmp_path / "records").exists()
