"""Learns a WordPiece vocabulary from the words of our own tokenizer.

The `tokenizers` package learns the merges (byte-pair encoding: the most frequent pair is merged first). Its own
WordPiece trainer numbers pieces in an order that differs between runs. So this module first turns each character that
continues a word into a code point of its own, in a fixed order. The same text then gives the same vocabulary.
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
    """Returns the counts of the words of `lines` after 2018's cleaning, lower-casing and splitting."""
    return accents.count_words(accents.count_chunks(lines), BasicTokenizer(do_lower_case))


def forget_rare_words(counts: Mapping[str, collections.Counter], most: int = MOST_DIFFERENT_WORDS) -> int:
    """Removes the rarest words from the largest tables until at most `most` words remain; returns their occurrences.

    So memory is bounded over all languages together. A removed word had been seen once (or twice, ...) in the text so
    far, too rarely to become a piece.
    """
    forgotten = 0
    while sum(map(len, counts.values())) > most:
        largest = max(counts.values(), key=len)
        rarest = min(largest.values())
        for word in [word for word, count in largest.items() if count == rarest]:
            forgotten += largest.pop(word)
    return forgotten


def choose_characters(counts: Mapping[str, float], coverage: float = COVERAGE, most: int | None = None) -> list[str]:
    """Returns the most frequent characters that can spell the share `coverage` of all words, at most `most` of them.

    Equally frequent ones are sorted by code point. Words that are too long for the tokenizer are not counted.
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

    Words with other characters are ignored. The counts of a large corpus are scaled down. In this case, or if `counts`
    were smoothed from `true_counts`, a word contributes only its characters if it truly occurs fewer than
    `min_frequency` times or its scaled count is below 0.5. The result is deterministic. Raises ValueError if there is
    no word, or if there are more characters than `size`.
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
    """Returns the words that the tokenizer can look up, those that are not too long."""
    return {word: count for word, count in counts.items() if 0 < len(word) <= MAX_WORD_LENGTH}


def _encoded_words(words: Mapping[str, int], private: Mapping[str, str]) -> Iterator[str]:
    """Yields texts with each word as often as it counts, its continuing characters as private code points."""
    table = str.maketrans(dict(private))
    for word, count in words.items():
        encoded = word[0] + word[1:].translate(table)
        for start in range(0, count, WORDS_AT_ONCE):
            yield " ".join([encoded] * min(WORDS_AT_ONCE, count - start))


def _learn_merges(texts: Iterable[str], alphabet: list[str], size: int, min_frequency: int) -> list[str]:
    """Returns the pieces of byte-pair encoding in the order of their creation, the alphabet first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=min_frequency, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _decode_piece(piece: str, public: Mapping[str, str]) -> str:
    """Returns a learned piece in its own characters, after `##` if it continues a word."""
    return ("##" if piece[0] in public else "") + "".join(public.get(char, char) for char in piece)


def choose_domain_words(
    counts: Mapping[str, int], tokenizer: FullTokenizer, most: int, min_frequency: int = 10
) -> list[str]:
    """Returns the words that would save most tokens of the counted text as entries of the vocabulary, best first.

    Each occurrence saves one token less than the word has pieces. A word that cannot be spelled saves one.
    """
    saved = {}
    for word, count in counts.items():
        if count >= min_frequency and word not in tokenizer.vocab and len(word) <= MAX_WORD_LENGTH:
            saved[word] = count * max(1, len(tokenizer.split_word(word)) - 1)
    return sorted(saved, key=lambda word: (-saved[word], word))[:most]


def make_vocab(pieces: Iterable[str], num_unused: int = 99) -> list[str]:
    """Returns the lines of a vocabulary file: [PAD], [unused0...], the other special tokens, then the pieces in their
    order.
    """
    unused = [f"[unused{number}]" for number in range(num_unused)]
    return list(dict.fromkeys([SPECIAL_TOKENS[0], *unused, *SPECIAL_TOKENS[1:], *pieces]))
