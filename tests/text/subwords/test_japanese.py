"""BertJapaneseTokenizer: the words of MeCab in WordPieces or characters, with places in the original text; the tokens
are those that `transformers` gives for the same files.
"""

import json

import pytest
from needed_tools import need

from official_bert.text import loading
from official_bert.text.graph_loading import load_graph

need("fugashi")
PIECES = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "東京",
    "天気",
    "ます",
    "船頭",
    "い",
    "##い",
    "で",
    "##す",
    "す",
    "!",
    "2",
    "##0",
    "##2",
    "##6",
    "都",
    "行",
    "##く",
    "く",
    "株",
    "式",
    "会",
    "社",
    "パ",
    "ン",
    "東",
    "京",
    "a",
    "##b",
)


def write(folder, **config):
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab", **config})
    )
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "text", "tokens"),
    [
        ("wordpiece", " 東京都 に行く [MASK] です", ["東京", "都", "[UNK]", "行", "##く", "[MASK]", "で", "##す"]),
        ("wordpiece", "いい天気！２０２６", ["い", "##い", "天気", "!", "2", "##0", "##2", "##6"]),
        ("wordpiece", "AB ㍿", ["[UNK]", "[UNK]", "[UNK]"]),
        ("wordpiece", "", []),
        ("character", "東京[SEP]行く", ["東", "京", "[SEP]", "行", "く"]),
        ("character", "㍿とﾊﾟﾝ", ["株", "式", "会", "社", "[UNK]", "パ", "ン"]),
    ],
)
def test_tokens_are_those_of_hugging_face_and_lie_in_the_original_text(tmp_path, kind, text, tokens):
    tokenizer = loading.load(write(tmp_path, subword_tokenizer_type=kind))
    spans = tokenizer.tokenize_with_offsets(text)
    assert [token for token, _, _ in spans] == tokens
    assert tokenizer.tokenize_ids(text) == [PIECES.index(token) for token in tokens]
    places = dict.fromkeys((start, end) for _, start, end in spans)  # each once: ㍿ is four characters
    assert "".join(text[start:end] for start, end in places) == text.replace(" ", "")


def test_a_mark_belongs_to_the_character_that_it_changes(tmp_path):
    tokenizer = loading.load(write(tmp_path, subword_tokenizer_type="character"))
    assert tokenizer.tokenize_with_offsets("ﾊﾟﾝ㍿") == [
        ("パ", 0, 2),
        ("ン", 2, 3),
        ("株", 3, 4),
        ("式", 3, 4),
        ("会", 3, 4),
        ("社", 3, 4),
    ]
    lower = loading.load(write(tmp_path, do_lower_case=True))
    assert lower.tokenize_with_offsets("ＡＢ") == [("a", 0, 1), ("##b", 1, 2)] and lower.do_lower_case


def test_it_is_not_exported_and_other_words_than_mecabs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="MeCab's words have no form in TensorFlow"):
        load_graph(write(tmp_path))
    for change, told in (
        ({"mecab_kwargs": {"mecab_option": "-u /tmp/theirs.dic"}}, "mecab_kwargs: expected no mecab_option, got"),
        ({"mecab_kwargs": ["a"]}, "mecab_kwargs: expected no mecab_option, got"),
        ({"word_tokenizer_type": "sudachi"}, "word_tokenizer_type: 'sudachi' is not supported; expected 'mecab'"),
        ({"subword_tokenizer_type": "sentencepiece"}, "subword_tokenizer_type: 'sentencepiece' is not supported"),
    ):
        with pytest.raises(ValueError, match=told):
            loading.load(write(tmp_path, **change))
    other = loading.load(write(tmp_path, mecab_kwargs={"mecab_dic": "juman"}))
    with pytest.raises(
        ValueError, match="mecab_kwargs.mecab_dic: expected one of unidic_lite, ipadic, unidic, got 'juman'"
    ):
        other.tokenize("東京")
