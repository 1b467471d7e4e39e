"""Writes a tokenizer's files with fewer or more tokens: the same kinds of files with other ids.

A pruned tokenizer gives the same tokens as before for every text whose tokens were all kept. WordPiece takes the
longest piece at each place, and a unigram model takes the best path, so removed pieces had not been chosen. Byte-level
BPE keeps the merge of every symbol that may arise on the way to a kept token, that is, of every part of it.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from official_bert.text import loading
from official_bert.text.subwords import model_proto, tokenizer_files
from official_bert.text.subwords.byte_bpe import byte_letters
from official_bert.text.subwords.host import WORD_START, SentencePieceTokenizer, SubwordTokenizer, read_merges
from official_bert.text.subwords.word_pieces import WordPieceTokenizer
from official_bert.text.tokenizer import Tokenizer

Files = Mapping[str, bytes]
DECODER = "added_tokens_decoder"  # of tokenizer_config.json: added tokens by id


def tokens_to_keep(tokenizer: Tokenizer, used_tokens: Collection[str], characters: bool) -> set[str]:
    """Returns the tokens that must be kept for `used_tokens`: these, special and added tokens, and symbols of
    byte-level BPE.

    With `characters`, tokens of a single character are kept too, so that other words can be spelled.
    """
    tokens = {*used_tokens, *tokenizer.special.values()} & set(tokenizer.vocab)
    if isinstance(tokenizer, SubwordTokenizer):
        tokens |= {token.content for token in tokenizer.added} & set(tokenizer.vocab)
    if characters:
        tokens |= {token for token in tokenizer.vocab if len(token.removeprefix("##").removeprefix(WORD_START)) <= 1}
    if tokenizer.kind == "byte_bpe":
        subwords = {
            token[start:end]
            for token in tokens
            for start in range(len(token))
            for end in range(start + 1, len(token) + 1)
        }
        tokens |= {*byte_letters(), *subwords} & set(tokenizer.vocab)
    return tokens


def pruned(tokenizer: SubwordTokenizer, tokens: Collection[str]) -> dict[str, bytes]:
    """Returns the files of a tokenizer with only these tokens, in their order."""
    files, where = dict(tokenizer.definition.files), tokenizer.vocab_file
    if tokenizer_files.WORDPIECE_FILE in files and isinstance(tokenizer, WordPieceTokenizer):
        entries = sorted(tokenizer.plain.vocab.keys() & tokens, key=tokenizer.vocab.__getitem__)
        files[tokenizer_files.WORDPIECE_FILE] = ("\n".join(entries) + "\n").encode()
        files.pop(tokenizer_files.JSON_FILE, None)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        files.pop(tokenizer_files.JSON_FILE, None)  # would be another vocabulary
        name = next(name for name in tokenizer_files.MODEL_FILES if name in files)
        model = model_proto.read(files[name], where)
        pieces = [
            piece
            for piece, index in zip(model.pieces, tokenizer.ids.tolist())
            if piece.type not in (model_proto.NORMAL, model_proto.UNUSED) or tokenizer.inv_vocab.get(index) in tokens
        ]
        del model.pieces[:]
        model.pieces.extend(pieces)
        files[name] = model.SerializeToString()
    elif tokenizer_files.JSON_FILE in files:
        settings = json.loads(files[tokenizer_files.JSON_FILE])
        settings["model"] = _pruned_model(settings["model"], tokens)
        files = {
            name: content
            for name, content in files.items()
            if name not in (tokenizer_files.VOCAB_JSON, tokenizer_files.MERGES_FILE)
        }
        files[tokenizer_files.JSON_FILE] = _as_json(settings)
    else:
        vocab = json.loads(files[tokenizer_files.VOCAB_JSON])
        model = _pruned_model({"vocab": vocab, "merges": read_merges(files)}, tokens)
        files[tokenizer_files.VOCAB_JSON] = _as_json(model["vocab"])
        files[tokenizer_files.MERGES_FILE] = "\n".join(["#version: 0.2", *model["merges"], ""]).encode()
    return _renumbered(files, where)


def extended(tokenizer: SubwordTokenizer, words: Sequence[str]) -> dict[str, bytes]:
    """Returns the files with `words` as added tokens, which match only where no letter is next to them."""
    files = dict(tokenizer.definition.files)
    added = [
        {"content": word, "single_word": True, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
        for word in words
    ]
    if tokenizer_files.JSON_FILE in files and not isinstance(tokenizer, SentencePieceTokenizer):
        settings = json.loads(files[tokenizer_files.JSON_FILE])
        settings["added_tokens"] = [*(settings.get("added_tokens") or ()), *({"id": -1, **token} for token in added)]
        files[tokenizer_files.JSON_FILE] = _as_json(settings)
    else:
        files.pop(tokenizer_files.JSON_FILE, None)
        config = json.loads(files.get(tokenizer_files.CONFIG_FILE, b"{}"))
        config[DECODER] = {
            **(config.get(DECODER) or {}),
            **{f"new {number}": token for number, token in enumerate(added)},
        }
        files[tokenizer_files.CONFIG_FILE] = _as_json(config)
    return _renumbered(files, tokenizer.vocab_file)


def _pruned_model(model: Mapping[str, Any], tokens: Collection[str]) -> dict[str, Any]:
    """Returns the model in a `tokenizer.json` with fewer tokens."""
    if isinstance(model["vocab"], list):  # unigram: pairs of a piece and its score
        unknown = model["vocab"][model["unk_id"]]
        pieces = [piece for piece in model["vocab"] if piece[0] in tokens or piece is unknown]
        return {**model, "vocab": pieces, "unk_id": pieces.index(unknown)}
    vocab = [token for token in sorted(model["vocab"], key=model["vocab"].__getitem__) if token in tokens]
    numbered = {"vocab": {token: index for index, token in enumerate(vocab)}}
    if "merges" not in model:
        return {**model, **numbered}
    merges = [
        merge for merge in model["merges"] if "".join(merge.split(" ") if isinstance(merge, str) else merge) in tokens
    ]
    return {**model, **numbered, "merges": merges}


def _renumbered(files: dict[str, bytes], where: str) -> dict[str, bytes]:
    """Returns the files with new ids of added tokens in every file that lists them: their place in the vocabulary, or
    behind it.
    """
    config = json.loads(files.get(tokenizer_files.CONFIG_FILE, b"{}"))
    decoder = dict(config.get(DECODER) or {})
    decoder |= {
        str(index): {"content": token}
        for token, index in json.loads(files.pop(tokenizer_files.ADDED_FILE, b"{}")).items()
        if token not in {entry["content"] for entry in decoder.values()}
    }
    files[tokenizer_files.CONFIG_FILE] = _as_json({**config, DECODER: {}})
    if tokenizer_files.JSON_FILE in files:
        settings = json.loads(files[tokenizer_files.JSON_FILE])
        vocab = settings["model"]["vocab"]
        ids = {piece[0]: index for index, piece in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
        added = settings.get("added_tokens") or []
        for token in added:
            token["id"] = ids.setdefault(token["content"], len(ids))
        settings["added_tokens"] = sorted(added, key=lambda token: token["id"])
        _number_processor(settings.get("post_processor"), ids)
        files[tokenizer_files.JSON_FILE] = _as_json(settings)
    else:
        ids = dict(loading.of_files(files, where).vocab)
    numbered = {str(ids.setdefault(token["content"], max(ids.values()) + 1)): token for token in decoder.values()}
    files[tokenizer_files.CONFIG_FILE] = _as_json({**config, DECODER: numbered} if decoder else config)
    return files


def _number_processor(processor: Any, ids: Mapping[str, int]) -> None:
    """Sets the new ids of special tokens in the post-processor of a `tokenizer.json`."""
    for part in (processor or {}).get("processors") or ():
        _number_processor(part, ids)
    for role in ("sep", "cls"):
        if processor and isinstance(processor.get(role), list):
            processor[role] = [processor[role][0], ids[processor[role][0]]]
    for token in ((processor or {}).get("special_tokens") or {}).values():
        token["ids"] = [ids[name] for name in token["tokens"]]


def _as_json(values: Any) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode()
