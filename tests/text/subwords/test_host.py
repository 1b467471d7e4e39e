"""Tokenizers of the family on the host: the libraries' pieces, the ids of each scheme, places in the text, rows."""

import json
import re
import unicodedata

import made_tokenizers
import numpy as np
import pytest
import sentencepiece
import tokenizers

import official_bert
from official_bert.text import loading
from official_bert.text.subwords import byte_bpe, tokenizer_files


@pytest.fixture(scope="module", params=made_tokenizers.KINDS)
def tokenizer(request, tmp_path_factory):
    return official_bert.load_tokenizer(
        made_tokenizers.write(tmp_path_factory.mktemp("t") / request.param, request.param)
    )


def test_xlm_roberta_has_fairseqs_ids(tmp_path):
    tokenizer = loading.load(made_tokenizers.write(tmp_path, "xlm_roberta"))
    model = sentencepiece.SentencePieceProcessor(model_proto=made_tokenizers.unigram_model())
    for text in [*made_tokenizers.TEXT, *made_tokenizers.DIFFICULT]:
        assert tokenizer.tokenize_ids(text) == [3 if index == 0 else index + 1 for index in model.encode(text)]
    assert [tokenizer.special_id(role) for role in ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")] == [
        0,
        1,
        2,
        3,
        len(model) + 1,
    ]


def test_camembert_has_its_own_ids(tmp_path):
    tokenizer = loading.load(made_tokenizers.write(tmp_path, "camembert"))
    model = sentencepiece.SentencePieceProcessor(model_proto=made_tokenizers.unigram_model())
    for text in made_tokenizers.TEXT:
        assert tokenizer.tokenize_ids(text) == [3 if index == 0 else index + 4 for index in model.encode(text)]
    assert [tokenizer.special_id(role) for role in ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")] == [
        5,
        1,
        6,
        3,
        len(model) + 4,
    ]


def test_albert_makes_quotes_drops_accents_and_lower_cases_before_its_model(tmp_path):
    tokenizer = loading.load(made_tokenizers.write(tmp_path, "albert"))
    model = sentencepiece.SentencePieceProcessor(model_proto=made_tokenizers.unigram_model(True))
    steps = tokenizers.normalizers.Sequence(
        [
            tokenizers.normalizers.Replace("``", '"'),
            tokenizers.normalizers.Replace("''", '"'),
            tokenizers.normalizers.NFKD(),
            tokenizers.normalizers.StripAccents(),
            tokenizers.normalizers.Lowercase(),
        ]
    )
    for text in [*made_tokenizers.TEXT, *made_tokenizers.DIFFICULT]:
        assert tokenizer.tokenize_ids(text) == model.encode(steps.normalize_str(text)), text
    assert tokenizer.do_lower_case
    # places are those of the original text, whose characters are others
    assert "".join(_slices(tokenizer, "Größe")) == "Größe"


def test_modernbert_composes_letters_and_has_tokens_for_runs_of_spaces(tmp_path):
    library = tokenizers.Tokenizer.from_str(made_tokenizers.modern_bpe())
    tokenizer = loading.load(made_tokenizers.write(tmp_path, "modernbert"))
    for text in made_tokenizers.texts():
        assert tokenizer.tokenize_ids(text) == library.encode(text, add_special_tokens=False).ids, text
        assert [
            tokenizer.vocab[token] for token, _, _ in tokenizer.tokenize_with_offsets(text)
        ] == tokenizer.tokenize_ids(text), text
    pair = library.encode("the boat", "the river")
    packed = tokenizer.encode(["the boat"], ["the river"])
    assert packed["input_ids"][0].tolist() == pair.ids and packed["segment_ids"][0].tolist() == pair.type_ids
    assert tokenizer.tokenize("a    b") == ["a", "    ", "b"] and _slices(tokenizer, "a    b") == ["a", "", "b"]
    # the accent belongs to its letter
    assert next(part for part in _slices(tokenizer, "cafe\u0301 x") if "e" in part).endswith("e\u0301")


def test_texts_in_nfc_have_as_many_parts_as_before():
    def parts(text):
        return sum(not place or not byte_bpe.may_compose(char) for place, char in enumerate(text))

    for code in (*range(0xD800), *range(0xF900, 0x20000)):
        for text in (f"a{chr(code)}", f"\u1100{chr(code)}\u0301"):
            assert unicodedata.is_normalized("NFC", text) or parts(text) == parts(unicodedata.normalize("NFC", text)), (
                ascii(text)
            )


def _slices(tokenizer, text):
    return [text[start:end] for _, start, end in tokenizer.tokenize_with_offsets(text)]


def test_byte_bpe_is_the_librarys_from_either_kind_of_files(tmp_path):
    library = tokenizers.Tokenizer.from_str(made_tokenizers.byte_bpe())
    two = [loading.load(made_tokenizers.write(tmp_path / kind, kind)) for kind in ("roberta", "roberta_files")]
    for text in [*made_tokenizers.TEXT, *made_tokenizers.DIFFICULT]:
        ids = library.encode(text, add_special_tokens=False).ids
        assert [one.tokenize_ids(text) for one in two] == [ids, ids]
    # 中 is three bytes, and each of its tokens spans it; a space before it or at the end is a token without a place.
    assert [part for part in _slices(two[0], "naïve 中 ") if part] == [
        *_slices(two[0], "naïve"),
        *["中"] * len(_slices(two[0], "中")),
    ]


def test_mpnet_has_special_tokens_of_its_own_around_the_word_pieces_of_bert(tmp_path):
    tokenizer = loading.load(made_tokenizers.write(tmp_path, "mpnet"))
    pieces = made_tokenizers.word_pieces()
    library = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    library.normalizer, library.pre_tokenizer = (
        tokenizers.normalizers.BertNormalizer(),
        tokenizers.pre_tokenizers.BertPreTokenizer(),
    )
    library.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True), "<s>", "</s>", "<pad>", "[UNK]"])
    for text in made_tokenizers.texts():
        assert tokenizer.tokenize_ids(text) == library.encode(text, add_special_tokens=False).ids, text
    encoded = tokenizer.encode(["the boat"], ["the river"])
    a, b = tokenizer.tokenize_ids("the boat"), tokenizer.tokenize_ids("the river")
    assert encoded["input_ids"].tolist() == [[0, *a, 2, 2, *b, 2]] and tokenizer.special_id("[MASK]") == len(pieces) - 1
    with pytest.raises(ValueError, match="tokenizer_class: expected BertTokenizer, got 'MPNetTokenizer'"):
        loading.load(str(tmp_path / "vocab.txt"))


def test_tokens_lie_in_the_text_in_order_and_without_spaces_at_their_ends(tokenizer):
    for text in made_tokenizers.texts():
        last = 0
        for token, start, end in tokenizer.tokenize_with_offsets(text):
            assert last <= start <= end <= len(text) or start >= last - 1, (text, token)
            assert text[start:end] == text[start:end].strip(" "), (text, token)
            last = start
        assert tokenizer.tokenize_ids(text) == [
            tokenizer.vocab[token] for token, _, _ in tokenizer.tokenize_with_offsets(text)
        ]


def test_special_tokens_in_a_text_are_found_and_the_mask_takes_the_space_before_it(tmp_path):
    tokenizer = loading.load(made_tokenizers.write(tmp_path, "xlm_roberta"))
    tokens = tokenizer.tokenize_with_offsets("the <mask></s>boat")
    assert [(token, start, end) for token, start, end in tokens if token.startswith("<")] == [
        ("<mask>", 4, 10),
        ("</s>", 10, 14),
    ]
    assert [token for token, _, _ in tokens[:3]] == ["\u2581the", "<mask>", "</s>"]  # the space is not a piece


def test_added_tokens_are_whole_words_if_they_say_so(tmp_path):
    added = {
        str(9000 + number): {"content": content, **flags}
        for number, (content, flags) in enumerate(
            [("boa", {"single_word": True}), ("<ent>", {"lstrip": True, "rstrip": True})]
        )
    }
    tokenizer = loading.load(made_tokenizers.write(tmp_path, "camembert", added_tokens_decoder=added))
    assert (
        tokenizer.size == 9002
        and "boa" in tokenizer.tokenize("a boa, b")
        and "boa" not in tokenizer.tokenize("a boat aboa")
    )
    assert ("<ent>", 2, 7) in tokenizer.tokenize_with_offsets("a <ent> b") and "\u2581" not in tokenizer.tokenize(
        "a <ent> "
    )


def test_rows_are_of_each_ones_form(tmp_path):
    roberta = loading.load(made_tokenizers.write(tmp_path / "r", "roberta"))
    albert = loading.load(made_tokenizers.write(tmp_path / "a", "albert"))
    a, b = roberta.tokenize_ids("the boat"), roberta.tokenize_ids("the river")
    encoded = roberta.encode(["the boat", "the"], ["the river", ""])
    assert encoded["input_ids"][0].tolist() == [0, *a, 2, 2, *b, 2] and not encoded["segment_ids"].any()
    assert encoded["input_ids"][1].tolist() == [0, *roberta.tokenize_ids("the"), 2] + [1] * (
        len(a + b) + 4 - 2 - len(roberta.tokenize_ids("the"))
    )
    encoded = albert.encode(["the boat"], ["the river"], max_seq_length=9)
    assert (
        encoded["input_ids"].shape == (1, 9) and encoded["segment_ids"][0, -1] == 1 and encoded["input_ids"][0, -1] == 3
    )


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
TEMPLATES = {
    "one separator": ("<s> $A </s>", "<s> $A </s> $B </s>"),
    "two separators": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "segments": ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1"),
}


@pytest.mark.parametrize("class_name", ["PreTrainedTokenizerFast", "RobertaTokenizer"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_of_pairs_are_those_of_the_template_in_a_sequence_too(tmp_path, name, class_name):
    template = tokenizers.processors.TemplateProcessing(*TEMPLATES[name], [("<s>", 0), ("</s>", 2)])
    library = tokenizers.Tokenizer.from_str(made_tokenizers.byte_bpe())
    library.post_processor = template
    values = json.loads(library.to_str())
    values["post_processor"] = {"type": "Sequence", "processors": [BYTE_LEVEL, values["post_processor"]]}
    library = tokenizers.Tokenizer.from_str(json.dumps(values))
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": class_name}))
    pair = library.encode("the boat", "the river")
    packed = loading.load(str(tmp_path)).encode(["the boat"], ["the river"])
    assert (packed["input_ids"][0].tolist(), packed["segment_ids"][0].tolist()) == (pair.ids, pair.type_ids)


@pytest.mark.parametrize(
    ("processor", "told"),
    [
        (
            {"type": "Sequence", "processors": [BYTE_LEVEL, {"type": "Another"}]},
            "post_processor: expected TemplateProcessing, RobertaProcessing, BertProcessing or ByteLevel, alone or in "
            "a Sequence, got Another",
        ),
        (
            {"type": "Sequence", "processors": [{"type": "BertProcessing"}, {"type": "RobertaProcessing"}]},
            "expected one step that makes rows, got BertProcessing and RobertaProcessing",
        ),
        (
            {"type": "BertProcessing", "cls": ["<cls>", 1], "sep": ["</s>", 2]},
            "expected rows with <s> and </s>, got <cls> and </s>",
        ),
        (
            {
                "type": "TemplateProcessing",
                "special_tokens": {},
                "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            },
            "expected rows <s> A </s>, and <s> A </s> B </s> or <s> A </s> </s> B </s> in segment 0 but for B and its "
            "</s>, got A, and A B:1",
        ),
    ],
)
def test_rows_of_another_form_are_refused(tmp_path, processor, told):
    values = json.loads(made_tokenizers.byte_bpe()) | {"post_processor": processor}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=re.escape(told)):
        loading.load(str(tmp_path))


def test_a_piece_begins_a_word_behind_a_space(tokenizer):
    text = (
        made_tokenizers.TEXT[0]
        if tokenizer.kind != "wordpiece"
        else made_tokenizers.TEXT[-1].replace(",", "").strip(".")
    )
    tokens = tokenizer.tokenize_with_offsets(text)
    begins = ~tokenizer.continues_word[[tokenizer.vocab[token] for token, _, _ in tokens]]
    for (before, *_), (_, start, end), begin in zip(tokens, tokens[1:], begins[1:]):
        if start < end and before != "\u2581":  # a piece of a space alone begins the word itself
            assert begin == (text[start - 1] == " "), text[start:]


def test_the_files_of_a_run_are_one_file_with_the_same_bytes_each_time(tmp_path, tokenizer):
    content = tokenizer_files.pack(tokenizer.definition.files)
    (tmp_path / "tokenizer.zip").write_bytes(content)
    again = loading.load(str(tmp_path / "tokenizer.zip"))
    assert (
        loading.content_of(str(tmp_path / "tokenizer.zip")) == content == tokenizer_files.pack(again.definition.files)
    )
    assert again.vocab == tokenizer.vocab and again.template == tokenizer.template
    assert again.tokenize_ids(made_tokenizers.TEXT[2]) == tokenizer.tokenize_ids(made_tokenizers.TEXT[2])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda folder: (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}'),
            "expected BertTokenizer, got 'T5Tok",
        ),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "tokenizer_config.json is not JSON"),
        (lambda folder: (folder / "sentencepiece.bpe.model").write_bytes(b"hello"), "expected a SentencePiece model"),
        (
            lambda folder: (folder / "tokenizer_config.json").unlink(),
            "expected tokenizer_config.json with tokenizer_class",
        ),
        (lambda folder: (folder / "sentencepiece.bpe.model").unlink(), "no tokenizer found there"),
    ],
)
def test_unusable_files_are_refused_by_name(tmp_path, change, told):
    folder = made_tokenizers.write(tmp_path, "xlm_roberta")
    change(tmp_path)
    with pytest.raises(ValueError, match=told):
        loading.load(folder)


def test_a_tokenizer_json_with_another_step_is_refused(tmp_path):
    folder = made_tokenizers.write(tmp_path, "roberta")
    values = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(values | {"normalizer": {"type": "NFKC"}}))
    with pytest.raises(ValueError, match="normalizer: expected none or NFC, got NFKC; or give ids"):
        loading.load(folder)
    (tmp_path / "tokenizer.json").write_text(json.dumps(values | {"normalizer": {"type": "NFC"}}))
    assert loading.load(folder).tokenize("e\u0301") == loading.load(folder).tokenize("\xe9")


@pytest.mark.parametrize(
    "changes", [{"normalizer": True}, {"pre_tokenizer": True}, {"pre_tokenizer": 5}, {"model": "BPE"}]
)
def test_a_tokenizer_json_whose_sections_are_none_is_refused(tmp_path, changes):
    folder = made_tokenizers.write(tmp_path, "roberta")
    values = json.loads((tmp_path / "tokenizer.json").read_text()) | changes
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="tokenizer.json"):
        loading.load(folder)


def test_more_rows_than_tokens_are_legal_and_fewer_are_refused(tmp_path, tokenizer):
    loading.check_rows(tokenizer.vocab_file, tokenizer.size + 35)
    with pytest.raises(ValueError, match=f"vocab_size = {tokenizer.size - 1} entries, got {tokenizer.size}"):
        loading.check_rows(tokenizer.vocab_file, tokenizer.size - 1)


def test_half_a_surrogate_pair_is_one_replacement_character(tokenizer):
    spans = tokenizer.tokenize_with_offsets("a\ud800b")
    assert spans[0][1] == 0 and spans[-1][2] == 3 and np.all([0 <= start <= end <= 3 for _, start, end in spans])
