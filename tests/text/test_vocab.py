"""Vocabulary files: ids are line numbers; impossible entries are refused with their line."""

import pytest
import tensorflow as tf

from official_bert.text.fast_tokenization import FastTokenizer
from official_bert.text.graph import GraphTokenizer
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.vocab import SPECIAL_TOKENS, extend_vocab, load_vocab

SPECIAL = "\n".join(SPECIAL_TOKENS) + "\n"


def write(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "vocab.txt"
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return str(path)


def test_ids_are_the_lines_of_the_file(golden):
    lines = (golden / "vocab_uncased.txt").read_text(encoding="utf-8").splitlines()
    vocab = load_vocab(str(golden / "vocab_uncased.txt"))
    assert list(vocab) == lines and list(vocab.values()) == list(range(3000))
    assert [vocab[token] for token in SPECIAL_TOKENS] == [0, 11, 12, 13, 14]


def test_an_empty_line_and_line_separators_keep_their_ids(tmp_path):
    vocab = load_vocab(write(tmp_path, SPECIAL + "\u2028\na\u0085b\nlast\n\n\n"))
    assert vocab == dict(zip(SPECIAL_TOKENS, range(5))) | {"": 5, "a\u0085b": 6, "last": 7}


def test_windows_line_ends_and_byte_order_mark_are_no_part_of_an_entry(tmp_path):
    assert list(load_vocab(write(tmp_path, SPECIAL.replace("\n", "\r\n"), "utf-8-sig"))) == list(SPECIAL_TOKENS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPECIAL + "a\nb\na\n", r"vocab.txt:8: vocabulary entry 'a' is repeated; it is also in line 6"),
        (SPECIAL.replace("[MASK]\n", ""), r"vocab.txt: expected .*, got 4 entries without \[MASK\]"),
        ("", r"got 0 entries without \[PAD\] \[UNK\] \[CLS\] \[SEP\] \[MASK\]"),
        (SPECIAL.encode() + b"a\n\xff\n", r"vocab.txt:7: not valid UTF-8 at byte 33 of the file"),
    ],
)
def test_a_vocabulary_that_cannot_be_meant_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        FullTokenizer(write(tmp_path, text))


def test_a_missing_vocabulary_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere.txt: no such vocabulary file"):
        load_vocab(str(tmp_path / "nowhere.txt"))
    with pytest.raises(ValueError, match="got a folder"):
        load_vocab(str(tmp_path))


def test_ids_and_tokens_convert_both_ways_and_strangers_are_errors(golden):
    tokenizer = FullTokenizer(str(golden / "vocab_cased.txt"), do_lower_case=False)
    tokens = tokenizer.tokenize("The harbour ledger")
    assert tokenizer.convert_ids_to_tokens(tokenizer.convert_tokens_to_ids(tokens)) == tokens
    assert tokenizer.special_id("[MASK]") == 14
    with pytest.raises(ValueError, match="token 'no such piece' is not in the vocabulary"):
        tokenizer.convert_tokens_to_ids(["the", "no such piece"])
    with pytest.raises(ValueError, match="expected ids below 3000, got 3000"):
        tokenizer.convert_ids_to_tokens([1, 3000])


def test_new_words_fill_unused_slots_and_then_grow_the_table():
    vocab = dict(zip(["[PAD]", "[unused1]", "a", "[unused0]", "b", ""], range(6)))
    entries, ids = extend_vocab(vocab, ["x", "a", "y", "x", "z", "w"])
    assert entries == ["[PAD]", "x", "a", "y", "b", "", "z", "w"]
    assert ids == {"x": 1, "y": 3, "z": 6, "w": 7}
    assert extend_vocab(vocab, ["x", "b"], grow=False) == (["[PAD]", "x", "a", "[unused0]", "b", ""], {"x": 1})
    with pytest.raises(ValueError, match=r"has 2 \[unusedN\] slots for 3 new words"):
        extend_vocab(vocab, ["x", "y", "z"], grow=False)


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ({"tokenizer_config.json": '{"tokenizer_class": "BertJapaneseTokenizer"}'}, "tokenizer_config.json"),
        ({"config.json": '{"tokenizer_class": "BertJapaneseTokenizer"}'}, "config.json"),
        (
            {
                "tokenizer_config.json": '{"tokenizer_class": "BertTokenizerFast"}',
                "config.json": '{"tokenizer_class": "Other"}',
            },
            "",
        ),
        ({"tokenizer_config.json": '{"tokenizer_class": "DistilBertTokenizer"}'}, ""),
        ({"tokenizer_config.json": "none"}, ""),
        ({"config.json": "[1]"}, ""),
        ({"config.json": '{"model_type": "bert"}'}, ""),
    ],
)
def test_a_vocabulary_of_another_tokenizer_is_refused(tmp_path, files, refused):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    if refused:
        with pytest.raises(
            ValueError, match=f"/{refused}: tokenizer_class: expected BertTokenizer, got 'BertJapaneseTokenizer'"
        ):
            load_vocab(str(tmp_path / "vocab.txt"))
    else:
        assert len(load_vocab(str(tmp_path / "vocab.txt"))) == 6


def test_several_blank_lines_keep_their_ids(tmp_path):
    words = ["[PAD]", "", "[UNK]", "\u2028", "[CLS]", "\u3000", "[SEP]", "[MASK]", "", "a", "##b"]
    path = write(tmp_path, "\n".join(words) + "\n\n")
    vocab = load_vocab(path)
    assert list(vocab.values()) == list(range(len(words))) and [vocab[word] for word in words if word.strip()] == [
        0,
        2,
        4,
        6,
        7,
        9,
        10,
    ]
    tokenizer = FullTokenizer(path)
    assert tokenizer.convert_tokens_to_ids(tokenizer.tokenize("ab \u3000 a\u2028")) == [9, 10, 9]
    assert FastTokenizer(path).encode_lines(["ab \u3000 a\u2028"])[0].tolist() == [9, 10, 9]
    assert GraphTokenizer(path).tokenize(tf.constant(["ab \u3000 a\u2028"])).to_list() == [[9, 10, 9]]
    (tmp_path / "again").mkdir()
    entries, ids = extend_vocab(vocab, ["c"])
    again = load_vocab(write(tmp_path / "again", "\n".join(entries) + "\n"))
    assert ids == {"c": 11} and list(again.items())[:11] == list(vocab.items())
