"""Folders of small tokenizers of the family, learned from our own sentences, as Hugging Face writes them."""

import functools
import io
import json
import pathlib

import sentencepiece
import tokenizers

TEXT = [
    "The little boat of the ferryman crosses the river three times a day, at 6, at 12 and at 18 o'clock.",
    "\"You don't say!\" she laughed; we'll see, they've come (all 12,000 of them) and he'd rather wait... isn't it?",
    "Ein Größenvergleich: die Straße ist länger als der Fluß, naïve Gäste zahlen 1.250,50 € für das Café.",
    "Un été, l'élève écrivit : « Où est la forêt ? » — à côté de l'église, près du château.",
    "Быстрая лодка переплыла реку и вернулась домой к вечеру; рыбак улыбнулся и спел песню.",
    "小船过河三次，船夫唱了一首歌。今天的天气很好。",
    "川の小舟は一日に三回渡ります。船頭さんは歌いました。",
    "작은 배가 강을 세 번 건넜고 뱃사공은 노래를 불렀다.",
    "القارب الصغير يعبر النهر ثلاث مرات في اليوم",
    "เรือลำเล็กข้ามแม่น้ำวันละสามครั้ง",
    "There are 3.14159 and 2026, i.e. CO2; e-mail: me@example.org, see https://example.org/a/b?c=d&e=f#g now!",
    "over and over the same words, the same river, the same boat and the same song of the same ferryman.",
]
# What is hard for tokenizers: characters that become several, spaces of many kinds, accents, controls, special tokens.
DIFFICULT = [
    "",
    " ",
    "  two  spaces ",
    "don't can't I'll we've 'tis ''s 's's x'sx 're",
    "tab\tnew\nline \r\n end\n",
    "naïve café ﬁne Ⅷ ２０２６ ½ ㎏",
    "日本語のテキスト 中文",
    "emoji 😀👍🏽 end",
    "x" * 300,
    "ab" * 200,
    "3.14159 1,000,000",
    "مرحبا بالعالم",
    "e\u0301 combining \u0301",
    "\xa0nbsp\u3000wide\u200bzero",
    "``quotes'' ok",
    "각\u1100\u1161\u11a8가\u11a8",
    "İstanbul ǅ ß ẞ ς Σ",
    "a\x01b\x7f \ufeffbom \ufffd",
    "\n\nlead",
    "trail  \n",
    " 'll",
    "\n's",
    "1st 2nd a1b2",
    "___ -- ... !?",
    "\U00010400\U0001f600\U000e0020x",
]
WITH_SPECIAL = [
    "<mask> at first",
    "a <mask> b",
    "a<mask>b</s> c<s>",
    "text [MASK] [CLS]x",
    "<unk> <pad>",
    "new_word new_words <ent> x<ent>y",
    "A  <mask>  B",
    "<mask><mask>",
    "  [MASK]   x[SEP]  ",
    "e\u0301\u0323  [CLS]\u0301  q\u0307\u0323 \u212b\u0958",
]


def texts() -> list[str]:
    """All texts."""
    return [*TEXT, *DIFFICULT, *WITH_SPECIAL]


@functools.cache
def unigram_model(albert: bool = False, size: int = 400) -> bytes:
    """A SentencePiece model with the special pieces of ALBERT, or those of XLM-R and CamemBERT."""
    model = io.BytesIO()
    special = (
        {
            "pad_id": 0,
            "unk_id": 1,
            "bos_id": -1,
            "eos_id": -1,
            "control_symbols": "[CLS],[SEP],[MASK]",
            "user_defined_symbols": '(,),",-',
        }
        if albert
        else {}
    )
    text = [line.lower() for line in TEXT] if albert else TEXT
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text * 3),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
        **special,
    )
    return model.getvalue()


@functools.cache
def byte_bpe(size: int = 700) -> str:
    """The content of a tokenizer.json of RoBERTa."""
    model = tokenizers.ByteLevelBPETokenizer()
    model.train_from_iterator(
        TEXT * 3,
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    )
    return model._tokenizer.to_str()


@functools.cache
def modern_bpe() -> str:
    """The content of a tokenizer.json of ModernBERT: NFC, runs of spaces that are tokens, BERT's special tokens behind
    them.
    """
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.normalizer, library.pre_tokenizer = (
        tokenizers.normalizers.NFC(),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    library.train_from_iterator(
        TEXT * 3,
        tokenizers.trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<|padding|>"],
            show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    library.add_tokens([tokenizers.AddedToken(" " * count, normalized=True) for count in range(9, 1, -1)])
    library.add_special_tokens(
        [
            tokenizers.AddedToken(token, normalized=False, lstrip=token == "[MASK]", special=True)
            for token in ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "[unused0]")
        ]
    )
    ids = [(token, library.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    library.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ids)
    return library.to_str()


@functools.cache
def word_pieces(lowercase: bool = True) -> list[str]:
    """A vocabulary of MPNet: its special tokens around BERT's."""
    model = tokenizers.BertWordPieceTokenizer(lowercase=lowercase)
    model.train_from_iterator(TEXT * 3, vocab_size=500, show_progress=False)
    return ["<s>", "<pad>", "</s>", "<unk>", *sorted(model.get_vocab(), key=model.get_vocab().get), "<mask>"]


def write(folder: pathlib.Path, kind: str, **config) -> str:
    """Writes the tokenizer of a kind (one of KINDS, or BERT's); `config` are further values."""
    folder.mkdir(parents=True, exist_ok=True)
    classes = {
        "xlm_roberta": "XLMRobertaTokenizer",
        "camembert": "CamembertTokenizer",
        "albert": "AlbertTokenizer",
        "roberta": "RobertaTokenizer",
        "roberta_files": "RobertaTokenizerFast",
        "mpnet": "MPNetTokenizer",
        "modernbert": "PreTrainedTokenizerFast",
        "bert": "BertTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": classes[kind], **config}))
    if kind == "modernbert":
        (folder / "tokenizer.json").write_text(modern_bpe())
    elif kind.startswith("roberta"):
        library = byte_bpe()
        model = json.loads(library)["model"]
        if kind == "roberta":
            (folder / "tokenizer.json").write_text(library)
        else:
            (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
            merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
            (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    elif kind in ("mpnet", "bert"):
        pieces = word_pieces() if kind == "mpnet" else word_pieces()[4:-1]
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    else:
        name = "spiece.model" if kind == "albert" else "sentencepiece.bpe.model"
        (folder / name).write_bytes(unigram_model(kind == "albert"))
    return str(folder)


KINDS = ("xlm_roberta", "camembert", "albert", "roberta", "roberta_files", "mpnet", "modernbert")
