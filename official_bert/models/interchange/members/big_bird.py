"""BigBird (Zaheer et al. 2020), for rows of which its authors' and Hugging Face's code computes full attention: a BERT then."""

from collections.abc import Mapping
from typing import Any

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members.bert import WORDS, tied
from official_bert.models.interchange.members.member import Form, Member, dense, layers, output, tables

BLOCK, RANDOM_BLOCKS = 64, 3  # of all published models
POOLER = dense("pooler/", "bert.pooler.")


def row_limit(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sparse attention begins above (5 + 2 random blocks) blocks of tokens: longer rows are refused."""
    kind, blocks = values["attention_type"], (values["block_size"], values["num_random_blocks"])
    if kind not in ("original_full", "block_sparse"):
        raise ValueError(f"attention_type: expected original_full or block_sparse, got {kind!r}")
    if kind == "block_sparse" and blocks != (BLOCK, RANDOM_BLOCKS):
        raise ValueError(f"attention_type: block_sparse is not computed here with block_size and num_random_blocks {blocks}; expected "
                         f"{BLOCK} and {RANDOM_BLOCKS}, for rows of at most {(5 + 2 * RANDOM_BLOCKS) * BLOCK} tokens, or original_full")
    most = (5 + 2 * RANDOM_BLOCKS) * BLOCK
    return {"row_limit": most if kind == "block_sparse" and most < values["max_position_embeddings"] else 0}


def their_attention(config: ModelConfig) -> dict[str, Any]:
    """The reverse of `row_limit`."""
    return {"attention_type": "block_sparse" if config.row_limit else "original_full", "block_size": BLOCK,
            "num_random_blocks": RANDOM_BLOCKS, "use_bias": True, "rescale_embeddings": False}


BIG_BIRD = Member(
    stems={"big_bird": "BigBird"}, prefix="bert.", tied=tied("bert."),
    encoder=(*tables("bert."), *layers("bert.encoder.layer.{i}.")),
    # Its heads for classes and answers are others than BERT's; a run holds them in ours.
    forms={"Model": Form("", POOLER), "ForMaskedLM": Form("pretraining", POOLER, WORDS),
           "ForPreTraining": Form("pretraining", POOLER, WORDS, output("next_sentence/", "cls.seq_relationship.")),
           "ForMultipleChoice": Form("choice", POOLER, output("classifier/", "classifier.")),
           "ForTokenClassification": Form("tagger", POOLER, output("tagger/", "classifier."))},
    fields=row_limit, values=their_attention, used=("attention_type", "block_size", "num_random_blocks"),
    switches={"use_bias": (True, None), "rescale_embeddings": (False, None)},
    defaults={"vocab_size": 50358, "hidden_act": "gelu_new", "max_position_embeddings": 4096, "attention_type": "block_sparse",
              "block_size": BLOCK, "num_random_blocks": RANDOM_BLOCKS})
