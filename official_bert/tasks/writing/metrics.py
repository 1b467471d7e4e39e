"""Metrics of written texts, from 0 to 1: exact match, chrF (Popović 2015) and ROUGE-L (Lin 2004)."""

import re
from collections.abc import Sequence

import sacrebleu
from rouge_score import rouge_scorer


class Words:
    """The words of a text: runs of a-z and 0-9 as in ROUGE's own code, or of any letters if the text has none of
    these.
    """

    def tokenize(self, text: str) -> list[str]:
        """Returns the words, in lower case."""
        return re.findall(r"[a-z0-9]+", text.lower()) or re.findall(r"\w+", text.lower())


def measure(written: Sequence[str], answers: Sequence[str], writable: Sequence[str]) -> dict[str, float]:
    """Computes the metrics of written texts; `writable` are the answers as the tokenizer can write them: an uncased
    model has no capitals.
    """
    pairs, rouge = list(zip(written, answers)), rouge_scorer.RougeScorer(["rougeL"], tokenizer=Words())
    return {
        "exact_match": _mean([text == answer for text, answer in zip(written, writable)]),
        "exact_match_raw": _mean([text == answer for text, answer in pairs]),
        "chrf": chrf(written, answers),
        "rouge_l": _mean([rouge.score(answer, text)["rougeL"].fmeasure for text, answer in pairs]),
    }


def chrf(written: Sequence[str], answers: Sequence[str]) -> float:
    """Returns chrF over all texts together: n-grams of 1 to 6 characters, with recall weighted twice."""
    return sacrebleu.corpus_chrf(list(written), [list(answers)]).score / 100.0


def _mean(values: Sequence[float]) -> float:
    return float(sum(values) / len(values))
