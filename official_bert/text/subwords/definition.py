"""Reads a tokenizer's files: its kind, special and added tokens, ids, form of rows, and steps before the model."""

import dataclasses
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from official_bert import json_values
from official_bert.limits import MOST_JSON_VALUES
from official_bert.text.subwords import tokenizer_files as names
from official_bert.text.subwords.byte_bpe import WHITE_SPACE_CODES
from official_bert.text.subwords.character_map import Steps
from official_bert.text.subwords.row_form import form_of_pairs
from official_bert.text.tokenizer import ROLES

Kind = Literal["byte_bpe", "unigram", "wordpiece", "japanese"]
ROBERTA = dict(zip(ROLES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>")))
ALBERT = dict(zip(ROLES, ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")))
WHITE_SPACE = "".join(map(chr, WHITE_SPACE_CODES))
WORD_CATEGORIES = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc"}
# Joiners, and letters in circles and squares, which Unicode counts as alphabetic.
OTHER_LETTERS = {
    0x200C,
    0x200D,
    *range(0x24B6, 0x24EA),
    *range(0x1F130, 0x1F14A),
    *range(0x1F150, 0x1F16A),
    *range(0x1F170, 0x1F18A),
}
KEYS = dict(zip(ROLES, ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")))


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """A token that is matched in a text before the model sees it."""

    content: str
    id: int
    single_word: bool = False  # no letter or digit may stand beside it
    lstrip: bool = False  # takes the white space before it
    rstrip: bool = False
    normalized: bool = False  # searched for after the text's normalizer, among the texts that the others leave


@dataclasses.dataclass(frozen=True)
class Family:
    """A class of tokenizers of Hugging Face."""

    kind: Kind
    special: Mapping[str, str]
    separators: int
    second_segment: int
    ids: Literal["own", "xlm_roberta", "camembert"] = "own"  # how they follow from those of a SentencePiece model


FAMILIES: Mapping[str, Family] = {
    "RobertaTokenizer": Family("byte_bpe", ROBERTA, 2, 0),
    "XLMRobertaTokenizer": Family("unigram", ROBERTA, 2, 0, "xlm_roberta"),
    "CamembertTokenizer": Family("unigram", ROBERTA, 2, 0, "camembert"),
    "AlbertTokenizer": Family("unigram", ALBERT, 1, 1),
    "MPNetTokenizer": Family("wordpiece", {**ROBERTA, "[UNK]": "[UNK]"}, 2, 0),
    "BertJapaneseTokenizer": Family("japanese", dict(zip(ROLES, ROLES)), 1, 1),
}
BYTE_FALLBACK = re.compile(rb'"type": *"BPE"[^{]{0,300}"byte_fallback": *true')
IDS = "give ids (load_encoder, an export without raw text)"  # to a model whose tokenizer is not computed
# Parts of a `tokenizer.json`.
SECTIONS = {"normalizer": dict, "pre_tokenizer": dict, "model": dict, "added_tokens": list}
# Classes that only say that tokenizer.json has everything.
GENERIC = ("", "PreTrainedTokenizer", "TokenizersBackend")


@dataclasses.dataclass(frozen=True)
class Definition:
    """A tokenizer as its files define it."""

    where: str
    family: Family
    files: Mapping[str, bytes]
    special: Mapping[str, str]  # role of BERT's token: token
    added: Sequence[AddedToken]  # of a SentencePiece model; `tokenizer.json` lists its own
    config: Mapping[str, Any]  # tokenizer_config.json

    @property
    def model(self) -> bytes | None:
        """The SentencePiece model, if there is one."""
        return next((self.files[name] for name in names.MODEL_FILES if name in self.files), None)

    @property
    def steps(self) -> Steps:
        """The steps applied to a text before a SentencePiece model (ALBERT's)."""
        if class_of(self.files, self.where) != "AlbertTokenizer":
            return Steps()
        return Steps(True, not self.config.get("keep_accents", False), bool(self.config.get("do_lower_case", True)))

    @property
    def lower_cases(self) -> bool:
        """Whether text is lower-cased before it is cut into pieces."""
        if self.family.kind in ("wordpiece", "japanese"):
            normalizer = mapping_in(self.files, names.JSON_FILE, self.where).get("normalizer") or {}
            lower = self.config.get("do_lower_case", normalizer.get("lowercase"))
            return self.family.kind == "wordpiece" if lower is None else bool(lower)
        return self.steps.lower


def read_definition(files: Mapping[str, bytes], where: str) -> Definition:
    """Returns the definition in a tokenizer's files. Raises ValueError, naming `where`, for damaged files and for
    tokenizers outside `FAMILIES`.
    """
    config = mapping_in(files, names.CONFIG_FILE, where)
    class_name = class_of(files, where)
    if why := ids_alone(files, where):
        raise ValueError(f"{where}: {why}")
    if class_name not in FAMILIES and class_name not in GENERIC:
        file = names.CONFIG_FILE if config.get("tokenizer_class") else "config.json"
        raise ValueError(
            f"{where}/{file}: tokenizer_class: expected BertTokenizer, got {class_name!r:.80}; "
            f"{', '.join(sorted(FAMILIES))} are computed, too"
        )
    library = mapping_in(files, names.JSON_FILE, where)
    check_sections(library, f"{where}: {names.JSON_FILE}")
    try:
        family = FAMILIES[class_name] if class_name in FAMILIES else _generic(files, library, where)
        stated = {
            **mapping_in(files, names.SPECIAL_FILE, where),
            **{key: value for key, value in config.items() if key in KEYS.values()},
        }
        special = {role: _content(stated.get(key)) or family.special[role] for role, key in KEYS.items()}
        place = f"{where}: {names.JSON_FILE}: post_processor"
        if form := form_of_pairs(library.get("post_processor"), special, place):
            family = dataclasses.replace(family, separators=form[0], second_segment=form[1])
    except (TypeError, AttributeError, LookupError) as error:  # a number for a section, and the like
        raise ValueError(f"{where}: {names.JSON_FILE}: expected the settings of a tokenizer: {error}") from None
    return Definition(where, family, files, special, _added(files, config, where), config)


def check_sections(library: Mapping[str, Any], where: str) -> None:
    """Raises ValueError, naming `where`, for parts of a `tokenizer.json` that are of another type."""
    for key, kind in SECTIONS.items():
        if (value := library.get(key)) is not None and not isinstance(value, kind):
            raise ValueError(f"{where}: {key}: expected a {kind.__name__}, got {value!r:.80}")


def ids_alone(files: Mapping[str, bytes], where: str) -> str:
    """Returns why a tokenizer is not computed whose models are, under whatever class; "" for others."""
    is_gemma = class_of(files, where) == "GemmaTokenizer" or BYTE_FALLBACK.search(files.get(names.JSON_FILE, b""))
    return f"Gemma's BPE is not supported: {IDS}" if is_gemma else ""


def check_values(values: Mapping[str, Any], computed: Mapping[str, tuple], where: str, otherwise: str = "") -> None:
    """Raises ValueError, naming `where` and what works `otherwise`, for a setting that is not supported here."""
    for key, usual in computed.items():
        if values.get(key) not in usual:
            raise ValueError(
                f"{where}{key}: {values.get(key)!r:.80} is not supported; expected {usual[0]!r}{otherwise}"
            )


def class_of(files: Mapping[str, bytes], where: str) -> str:
    """Returns the tokenizer class that the files name, without its suffix Fast; "" if they name none."""
    config = mapping_in(files, names.CONFIG_FILE, where)
    return str(config.get("tokenizer_class") or files.get(names.CLASS_FILE, b"").decode()).removesuffix("Fast")


def mapping_in(files: Mapping[str, bytes], name: str, where: str) -> dict[str, Any]:
    """Returns the content of a JSON file, {} if there is none."""
    if name not in files:
        return {}
    try:
        values = json_values.parse(files[name], MOST_JSON_VALUES)
    except ValueError as error:
        raise ValueError(f"{where}: {name} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{where}: {name}: expected a mapping, got {str(values)[:60]}")
    return values


def _content(token: Any) -> str:
    """Returns a token, which files hold as a string or as a mapping."""
    return str(token.get("content", "")) if isinstance(token, dict) else token or ""


def _generic(files: Mapping[str, bytes], library: Mapping[str, Any], where: str) -> Family:
    """Returns the family of a tokenizer whose class is not named."""
    if not library:
        if any(name in files for name in names.MODEL_FILES) and names.MODEL_FILES[0] not in files:
            return Family("unigram", ALBERT, 1, 1)  # ids are the model's own
        if names.VOCAB_JSON in files:
            return FAMILIES["RobertaTokenizer"]
        raise ValueError(
            f"{where}: expected {names.CONFIG_FILE} with tokenizer_class beside {', '.join(sorted(files))}: "
            "it decides the ids"
        )
    model = library.get("model") or {}
    models: dict[str, Kind] = {"BPE": "byte_bpe", "Unigram": "unigram", "WordPiece": "wordpiece"}
    if (kind := model.get("type", "BPE" if "merges" in model else "")) not in models:
        raise ValueError(f"{where}: {names.JSON_FILE}: model: expected {', '.join(models)}, got {kind!r:.80}")
    vocab = model.get("vocab") or {}
    tokens = set(vocab) if isinstance(vocab, dict) else {str(entry[0]) for entry in vocab}
    tokens |= {_content(token) for token in library.get("added_tokens") or ()}
    special = ALBERT if {"[CLS]", "[SEP]"} <= tokens else ROBERTA
    form = (2, 0) if special is ROBERTA else (1, 1)  # unless the file says another
    return Family(
        models[kind],
        {
            **special,
            **({"[PAD]": "[PAD]"} if "[PAD]" in tokens else {}),
            **({"[UNK]": "[UNK]"} if "[UNK]" in tokens else {}),
        },
        *form,
    )


def _added(files: Mapping[str, bytes], config: Mapping[str, Any], where: str) -> list[AddedToken]:
    """Returns the tokens that were added to a tokenizer, as far as its files give their ids."""
    tokens = {
        str(content): AddedToken(str(content), _id(index, f"{where}: {names.ADDED_FILE}"))
        for content, index in mapping_in(files, names.ADDED_FILE, where).items()
    }
    decoder, place = config.get("added_tokens_decoder") or {}, f"{where}: {names.CONFIG_FILE}: added_tokens_decoder"
    if not isinstance(decoder, dict) or not all(
        isinstance(token, dict) and isinstance(token.get("content"), str) for token in decoder.values()
    ):
        raise ValueError(f"{place}: expected tokens, each with its content, by their ids, got {str(decoder)[:60]}")
    for index, token in decoder.items():
        tokens[token["content"]] = AddedToken(
            token["content"], _id(index, place), *(bool(token.get(key)) for key in ("single_word", "lstrip", "rstrip"))
        )
    return list(tokens.values())


def _id(index: Any, where: str) -> int:
    """Returns the id of a token, which files hold as a number or as a text. Raises ValueError for anything else."""
    if not re.fullmatch("[0-9]{1,10}", str(index)):
        raise ValueError(f"{where}: expected ids of tokens, got {str(index)[:60]!r}")
    return int(index)


class Part(NamedTuple):
    """A part of a text: an added token, or text between them (`token` None)."""

    start: int
    end: int
    token: AddedToken | None


class AddedTokens:
    """Finds added tokens in a text: from the left, the longest match at each place. A match includes the white space
    that its token strips.

    As in the `tokenizers` library, a white-space token is found even if the token before it stripped that space, and
    text continues after it.
    """

    def __init__(self, tokens: Sequence[AddedToken]):
        self.tokens = {token.content: token for token in tokens if token.content}
        contents = sorted(self.tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, contents))) if contents else None

    def split(self, text: str) -> Iterator[Part]:
        """Yields the parts of a text, in order, none of them empty."""
        last = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            start, end, token = match.start(), match.end(), self.tokens[match.group()]
            if token.single_word and (is_letter(text[start - 1 : start]) or is_letter(text[end : end + 1])):
                continue
            while token.lstrip and start > last and text[start - 1] in WHITE_SPACE:
                start -= 1
            while token.rstrip and end < len(text) and text[end] in WHITE_SPACE:
                end += 1
            start = max(start, last) if token.lstrip else start
            if start > last:
                yield Part(last, start, None)
            if start < end:
                yield Part(start, end, token)
            last = end
        if last < len(text):
            yield Part(last, len(text), None)


def is_letter(char: str) -> bool:
    """Returns whether a character may not adjoin a token that must be a whole word (\\w of Unicode); "" may."""
    return bool(char) and (unicodedata.category(char) in WORD_CATEGORIES or ord(char) in OTHER_LETTERS)
