"""Hugging Face transformers on PyTorch."""

PACKAGES, ENVIRONMENT, INSTALL = ("transformers", "tokenizers", "torch"), ".venv-torch", "make venv-torch"


def _tokenizer(given, kind="uncased"):
    from transformers import BertTokenizer

    return BertTokenizer(vocab=given.vocabulary(kind), do_lower_case=kind != "cased")


def _model(given):
    import torch
    from transformers import BertForPreTraining

    names = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
    inputs = {theirs: torch.tensor(given.batch[name]).long() for name, theirs in names.items()}
    return BertForPreTraining.from_pretrained(given.weights("hugging_face")).eval(), inputs


def tokens(given, kind):
    return _tokenizer(given, kind)(given.texts(kind), add_special_tokens=False)["input_ids"]


def offsets(given):
    found = _tokenizer(given)(given.texts("uncased"), add_special_tokens=False, return_offsets_mapping=True)
    return [[(number, *span) for number, span in zip(*row)] for row in zip(found["input_ids"], found["offset_mapping"])]


def pairs(given):
    tokenizer, how = _tokenizer(given), {"truncation": "longest_first", "max_length": given.values["max_seq_length"]}
    rows = [tokenizer(a, b, **how) for a, b in given.values["pairs"]]
    return [[row["input_ids"], row["token_type_ids"]] for row in rows]


def outputs(given):
    model, inputs = _model(given)
    found = model.bert(**inputs)
    return {"sequence_output": found[0].detach().numpy(), "pooled_output": found[1].detach().numpy()}


def gradient(given):
    import torch

    model, inputs = _model(given)
    found = model.bert(**inputs)
    given.directions = {name: torch.tensor(direction) for name, direction in given.directions.items()}
    given.total({"sequence_output": found[0], "pooled_output": found[1]}, torch.sum).backward()
    return model.get_input_embeddings().weight.grad.numpy()


def masked_lm(given):
    model, inputs = _model(given)
    logits = model(**inputs).prediction_logits.detach().numpy()
    return logits[[[row] for row in range(len(logits))], given.batch["masked_lm_positions"]]


def next_sentence(given):
    model, inputs = _model(given)
    return model(**inputs).seq_relationship_logits.detach().numpy()
