"""Reports the tokens of a corpus: in, out, repeated and left out."""

from collections.abc import Mapping
from typing import Any

from official_bert.data.pretraining.counts import Counts
from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.text import loading

Account = Mapping[str, Any]  # "documents", "sentences", "tokens", [UNK] ("unknown") of the corpus, and "counts"


def report(account: Account, config: InstanceConfig, vocab_file: str) -> YieldReport:
    """Returns the report of the tokens: in, out, repeated and left out."""
    counts: Counts = account["counts"]
    words = {index: token for token, index in loading.entries(vocab_file).items()}
    size = max(words) + 1  # ids from there on continue a unit of the text
    balance = YieldReport()
    balance.keep(documents=account["documents"], sentences=account["sentences"], tokens=counts.tokens)
    balance.repeat(
        f"in {config.dupe_factor} passes (--dupe_factor)", tokens=account["tokens"] * (config.dupe_factor - 1)
    )
    balance.repeat("as random next segments", tokens=counts.random_tokens)
    if account["unknown"]:
        balance.note("[UNK]", tokens=account["unknown"])
    if counts.copies:
        balance.note(
            "documents of the same text as an earlier one: no random next segment comes from a copy",
            documents=counts.copies,
        )
    for reason, tokens, examples in (
        ("cut off at --max_seq_length", counts.truncated, counts.truncated_examples),
        ("a word alone makes no pair (sop)", counts.unpaired, counts.unpaired_examples),
    ):
        for place, example in enumerate(examples):
            text = " ".join(words.get(index % size, "?") for index in example).replace(" ##", "")
            balance.drop(reason, text, tokens=0 if place else tokens)
    return balance
