"""Learns a WordPiece vocabulary from the words that our own tokenizer makes.

The `tokenizers` package learns the merges (byte-pair encoding: the most frequent pair is merged first). Its own
WordPiece trainer numbers pieces in an order that differs between runs. So here each character that continues a word
first becomes a code point of its own, in a fixed order: the same text gives the same vocabulary.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from official_bert.text import accents
from official_bert.text.tokenization import MAX_WORD_LENGTH, BasicTokenizer, FullTokenizer
from official_bert.text.vocab import SPECIAL_TOKENS

PRIVATE_START = 0xF0000  # planes 15 and 16 are for private use
PRIVATE_SIZE = 0x1FFFE
MOST_WORDS = 20_000_000  # counts are scaled down to about so many words in all before merging
MOST_DIFFERENT_WORDS = 5_000_000  # of all languages, while they are counted: about 0.6 GB
COVERAGE = 0.9995  # share of the words that can be spelled: fewer than 0.1 % become [UNK]
WORDS_AT_ONCE = 10_000


def count_words(lines: Iterable[str], do_lower_case: bool = True) -> collections.Counter:
    """Counts the words of `lines` after 2018's cleaning, lower-casing and splitting."""
    return accents.count_words(accents.count_chunks(lines), BasicTokenizer(do_lower_case))


def forget_rare_words(counts: Mapping[str, collections.Counter], most: int = MOST_DIFFERENT_WORDS) -> int:
    """Takes the rarest words out of the largest tables until there are at most `most` words; returns their occurrences.

    Memory stays bounded over all languages together. What is forgotten was seen once (or twice, ...) in all the text
    before: too rare to become a piece.
    """
    forgotten = 0
    while sum(map(len, counts.values())) > most:
        largest = max(counts.values(), key=len)
        rarest = min(largest.values())
        for word in [word for word, count in largest.items() if count == rarest]:
            forgotten += largest.pop(word)
    return forgotten


def choose_characters(counts: Mapping[str, float], coverage: float = COVERAGE, most: int | None = None) -> list[str]:
    """Returns the most frequent characters with which the share `coverage` of all words can be spelled, at most `most`.

    Equally frequent ones by code point. Words that the tokenizer gives up for their length are not counted.
    """
    words = _spellable(counts)
    frequency: dict[str, float] = collections.defaultdict(float)
    for word, count in words.items():
        for char in word:
            frequency[char] += count
    ranked = sorted(frequency, key=lambda char: (-frequency[char], char))[: min(most or PRIVATE_SIZE, PRIVATE_SIZE)]
    rank = {char: place for place, char in enumerate(ranked)}
    spelled_from: dict[int, float] = collections.defaultdict(float)  # words by the rank of their rarest character
    for word, count in words.items():
        spelled_from[max(rank.get(char, len(ranked)) for char in word)] += count
    share, spelled = coverage * sum(words.values()), 0.0
    for place in range(len(ranked)):
        spelled += spelled_from[place]
        if coverage < 1 and spelled >= share:
            return ranked[: place + 1]
    return ranked


def unspelled_words(counts: Mapping[str, int], characters: Iterable[str]) -> dict[str, int]:
    """Returns the words that become [UNK] with a vocabulary of these characters, the most frequent first."""
    known = set(characters)
    lost = {word: count for word, count in counts.items() if len(word) > MAX_WORD_LENGTH or not known.issuperset(word)}
    return dict(sorted(lost.items(), key=lambda item: (-item[1], item[0])))


def learn_pieces(
    counts: Mapping[str, float],
    size: int,
    min_frequency: int = 2,
    characters: Iterable[str] | None = None,
    true_counts: Mapping[str, int] | None = None,
) -> list[str]:
    """Returns at most `size` WordPieces: `characters` (default: all) alone and as `##c`, then merges in their order.

    A word with another character is not learned from. Very many words are scaled down. If so, or if `counts` were
    smoothed from `true_counts`, words that truly occur fewer than `min_frequency` times, or would then count less than
    half, give their characters only. Deterministic. Raises ValueError if there is no word, or if the characters alone
    are more than `size`.
    """
    words = _spellable(counts)
    if not words:
        raise ValueError("no words to learn a vocabulary from")
    letters = set(choose_characters(counts, 1.0) if characters is None else characters)
    words = {word: count for word, count in sorted(words.items()) if letters.issuperset(word)}
    starts, continuing = sorted(letters), sorted({char for word in words for char in word[1:]})
    if len(starts) + len(continuing) > size:
        raise ValueError(
            f"a vocabulary of {size} pieces cannot hold {len(starts)} characters and {len(continuing)} continuing "
            "ones; give a larger size (--vocab_size), fewer [unusedN] slots (--num_unused) or fewer characters "
            "(--character_coverage)"
        )
    scale = min(1.0, MOST_WORDS / max(1, sum(words.values())))
    if true_counts is not None or scale < 1:
        words = {
            word: count
            for word, count in words.items()
            if (true_counts or counts)[word] >= min_frequency and count * scale >= 0.5
        }
    whole = {word: max(1, round(count * scale)) for word, count in words.items()}
    private = {char: chr(PRIVATE_START + index) for index, char in enumerate(continuing)}
    merges = _learn_merges(
        _encoded_words(whole, private), starts + list(private.values()), size, max(1, round(min_frequency * scale))
    )
    public = {code: char for char, code in private.items()}
    return [_decode_piece(piece, public) for piece in merges]


def _spellable(counts: Mapping[str, float]) -> dict[str, float]:
    """Returns the words that the tokenizer looks up: those that are not too long."""
    return {word: count for word, count in counts.items() if 0 < len(word) <= MAX_WORD_LENGTH}


def _encoded_words(words: Mapping[str, int], private: Mapping[str, str]) -> Iterator[str]:
    """Texts with each word as often as it counts, its continuing characters in private code points."""
    table = str.maketrans(dict(private))
    for word, count in words.items():
        encoded = word[0] + word[1:].translate(table)
        for start in range(0, count, WORDS_AT_ONCE):
            yield " ".join([encoded] * min(WORDS_AT_ONCE, count - start))


def _learn_merges(texts: Iterable[str], alphabet: list[str], size: int, min_frequency: int) -> list[str]:
    """Returns the pieces of byte-pair encoding in the order in which they were made, the alphabet first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=min_frequency, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _decode_piece(piece: str, public: Mapping[str, str]) -> str:
    """Gives a learned piece its own characters, after `##` if it continues a word."""
    return ("##" if piece[0] in public else "") + "".join(public.get(char, char) for char in piece)


def choose_domain_words(
    counts: Mapping[str, int], tokenizer: FullTokenizer, most: int, min_frequency: int = 10
) -> list[str]:
    """Returns the words that would save the most tokens of the counted text as entries of the vocabulary, best first.

    Each occurrence of a word saves one token less than the word has pieces; a word that cannot be spelled counts as
    two.
    """
    saved = {}
    for word, count in counts.items():
        if count >= min_frequency and word not in tokenizer.vocab and len(word) <= MAX_WORD_LENGTH:
            saved[word] = count * max(1, len(tokenizer.split_word(word)) - 1)
    return sorted(saved, key=lambda word: (-saved[word], word))[:most]


def make_vocab(pieces: Iterable[str], num_unused: int = 99) -> list[str]:
    """Returns the lines of a vocabulary file: [PAD], [unused0...], the other special tokens, then pieces in their
    order.
    """
    unused = [f"[unused{number}]" for number in range(num_unused)]
    return list(dict.fromkeys([SPECIAL_TOKENS[0], *unused, *SPECIAL_TOKENS[1:], *pieces]))
