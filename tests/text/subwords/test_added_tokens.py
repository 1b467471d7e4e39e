"""Added tokens, white space and places: the libraries' ids, the same tokens and places on the host and in the graph."""

import io
import json
import random
import sys

import made_tokenizers
import pytest
import sentencepiece
import tensorflow as tf
import tokenizers
from tokenizers import AddedToken

from official_bert.text import loading
from official_bert.text.graph_loading import load_graph
from official_bert.text.subwords.definition import is_letter

WORDS = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\u3000",
    "\xa0",
    "\x1c",
    "\x85",
    "a",
    "b1",
    "new",
    "new_",
    "new_words",
    "boat",
    "s",
    "½",
    "\u200d",
    "e\u0301",
    "'s",
    "<e>",
    "<f>",
    "<mask>",
    "</s>",
]


def made_texts(count):
    draw = random.Random(3)
    return ["".join(draw.choice(WORDS) for _ in range(draw.randint(1, 9))) for _ in range(count)]


def library(content, *added):
    made = tokenizers.Tokenizer.from_str(content)
    made.add_tokens([token for token in added if not token.special])
    made.add_special_tokens([token for token in added if token.special])
    return made


def loaded(folder, content, class_name="RobertaTokenizer"):
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(content)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": class_name}))
    return loading.load(str(folder)), load_graph(str(folder))


def check_alike(host, graph, texts):
    """Compares the graph's tokens and places with the host's, and the tokens of both ways on the host."""
    columns = zip(*(part.to_list() for part in graph.tokenize_with_offsets(tf.constant(texts))))
    for text, row in zip(texts, columns):
        spans = host.tokenize_with_offsets(text)
        assert [(host.vocab[token], start, end) for token, start, end in spans] == list(zip(*row)), text
        assert list(row[0]) == host.tokenize_ids(text), text


SETS = {
    "roberta": (
        made_tokenizers.byte_bpe,
        [AddedToken("<e>", rstrip=True, normalized=False), AddedToken("  ", normalized=False)],
    ),
    "two_rounds": (
        made_tokenizers.byte_bpe,
        [
            AddedToken("<e>", rstrip=True),
            AddedToken("  ", special=True),
            AddedToken("new_words", single_word=True),
            AddedToken("new"),
            AddedToken("<f>", lstrip=True, rstrip=True, special=True),
            AddedToken("\t"),
        ],
    ),
    "modernbert": (
        made_tokenizers.modern_bpe,
        [
            AddedToken("<e>", rstrip=True, special=True),
            AddedToken("boat", single_word=True, normalized=False),
            AddedToken("e\u0301s"),
            AddedToken("<f>", lstrip=True),
        ],
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_the_graph_gives_the_librarys_ids_where_tokens_take_white_space_or_must_be_words(tmp_path, name):
    content, added = SETS[name]
    wanted = library(content(), *added)
    class_name = "RobertaTokenizer" if name != "modernbert" else "PreTrainedTokenizerFast"
    host, graph = loaded(tmp_path, wanted.to_str(), class_name)
    texts = ["a <e>  gap b", "<f> \t<f>", "<e>   x", "<e>  <e> ", "new_wordss new_words", "<f>\x1c<e>\t  "]
    texts += made_texts(300)
    ids = graph.tokenize(tf.constant(texts)).to_list()
    for text, row in zip(texts, ids):
        assert row == wanted.encode(text, add_special_tokens=False).ids, text
    check_alike(host, graph, texts)


def test_added_tokens_of_very_many_characters_have_no_graph(tmp_path):
    content = library(made_tokenizers.byte_bpe(), AddedToken("x" * 32_768)).to_str()
    with pytest.raises(ValueError, match="expected at most 32,768 characters of added tokens, got"):
        loaded(tmp_path, content)


def test_places_leave_out_the_white_space_that_a_token_takes(tmp_path):
    added = [AddedToken("<e>", rstrip=True, lstrip=True, normalized=False), AddedToken("\t", normalized=False)]
    host, graph = loaded(tmp_path, library(made_tokenizers.byte_bpe(), *added).to_str())
    text = "a\u3000<e>\n\tb\u3000"
    spans = [("a", 0, 1), ("<e>", 2, 5), ("\t", 7, 7), ("b", 7, 8)]
    spans += [(token, 8, 9) for token in host.tokenize("\u3000")]
    assert host.tokenize_with_offsets(text) == spans
    check_alike(host, graph, [text, "\t", "<e> "])


def test_letters_are_those_beside_which_the_library_finds_no_whole_word():
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0, "[UNK]": 1}, "[UNK]"))
    made.add_tokens([AddedToken("<t>", single_word=True, normalized=False)])
    skipped = {*range(0xD800, 0xE000), *range(0x30000, sys.maxunicode + 1)}
    codes = [code for code in (*range(0x3400), *range(0xA000, 0xAC80), *range(0xF900, 0x20000)) if code not in skipped]
    found = [len(row.ids) > 1 for row in made.encode_batch([f"{chr(code)}<t>" for code in codes])]
    # Python's tables of characters are older than the library's: characters that it does not know are no letters.
    wrong = [
        hex(code) for code, alone in zip(codes, found) if alone == is_letter(chr(code)) and chr(code).isprintable()
    ]
    assert not wrong


def unigram_model(**settings):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(made_tokenizers.TEXT * 3),
        model_writer=model,
        vocab_size=400,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
        **settings,
    )
    return model.getvalue()


def write_unigram(folder, content):
    made_tokenizers.write(folder, "xlm_roberta")
    (folder / "sentencepiece.bpe.model").write_bytes(content)
    return str(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"user_defined_symbols": ["new york", "x\ty", "\t", "  "]},
        {"normalization_rule_name": "identity", "user_defined_symbols": ["a\u3000b"]},
    ],
)
def test_user_symbols_and_white_space_have_one_place_on_the_host_and_in_the_graph(tmp_path, settings):
    path = write_unigram(tmp_path, unigram_model(**settings))
    host, graph = loading.load(path), load_graph(path)
    draw = random.Random(5)
    parts = ["new york", "x\ty", "\t", "\u3000", "a\u3000b", " ", "  ", "\u2581", "the", "\u200b", "½", "\n", "<mask>"]
    texts = ["".join(draw.choice(parts) for _ in range(draw.randint(1, 8))) for _ in range(200)]
    model = sentencepiece.SentencePieceProcessor(model_file=f"{path}/sentencepiece.bpe.model")
    wanted = [index + 1 if index else 3 for index in model.encode("new york x\ty  a")]
    assert host.tokenize_ids("new york x\ty  a") == wanted
    check_alike(host, graph, texts)
    text = "in new york"
    assert [text[start:end] for _, start, end in host.tokenize_with_offsets(text) if start < end] == [
        token.strip("\u2581") for token in host.tokenize(text) if token != "\u2581"
    ]


def test_a_model_whose_pieces_end_with_the_space_is_refused(tmp_path):
    path = write_unigram(tmp_path, unigram_model(treat_whitespace_as_suffix=True))
    with pytest.raises(ValueError, match=r"pieces end with the space behind it \(treat_whitespace_as_suffix\)"):
        loading.load(path)


def unigram_json(folder, normalizers, pre_tokenizer, added=()):
    model = sentencepiece.SentencePieceProcessor(model_proto=made_tokenizers.unigram_model())
    pieces = [(model.id_to_piece(index), model.get_score(index)) for index in range(3, len(model))]
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram([*((token, 0.0) for token in special), *pieces], 3, False))
    made.normalizer, made.pre_tokenizer = tokenizers.normalizers.Sequence(normalizers), pre_tokenizer
    made.add_special_tokens([*special, AddedToken("<mask>", lstrip=True)])
    made.add_tokens(list(added))
    folder.mkdir()
    (folder / "tokenizer.json").write_text(made.to_str())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    return made, str(folder)


def test_a_unigram_model_in_json_whose_spaces_are_tokens_has_no_graph_and_accents_belong_to_their_letters(tmp_path):
    steps, before = tokenizers.normalizers, tokenizers.pre_tokenizers
    made, path = unigram_json(tmp_path / "spaces", [steps.NFC()], before.Metaspace())
    assert loading.load(path).tokenize_ids("the boat ") == made.encode("the boat ", add_special_tokens=False).ids
    with pytest.raises(ValueError, match="superfluous spaces are tokens, which TensorFlow's SentencePiece does not"):
        load_graph(path)
    usual = [steps.Strip(left=False), steps.Replace(tokenizers.Regex(" {2,}"), "\u2581")]
    _, path = unigram_json(tmp_path / "later", usual, before.Metaspace(), [AddedToken("new")])
    with pytest.raises(ValueError, match="added token 'new': expected normalized false, lstrip true or"):
        load_graph(path)
    made, path = unigram_json(tmp_path / "usual", usual, before.Metaspace(), [AddedToken("new", normalized=False)])
    texts = ["the  boat ", " new  boat <mask> x", "new", "  ", ""]
    assert load_graph(path).tokenize(tf.constant(texts)).to_list() == [
        made.encode(text, add_special_tokens=False).ids for text in texts
    ]
    pair = before.Sequence([before.WhitespaceSplit(), before.Metaspace()])
    made, path = unigram_json(tmp_path / "words", [steps.NFC()], pair)
    host = loading.load(path)
    assert host.tokenize_with_offsets("cafe\u0301 x")[-3][1:] == (3, 5)
