"""flash-tokenizer. It takes single texts and gives no offsets."""

PACKAGES, ENVIRONMENT, INSTALL = ("flash-tokenizer",), ".venv-torch", "make venv-torch"
LONGEST = 100_000


def tokens(given, kind):
    from flash_tokenizer import BertTokenizerFlash

    tokenizer = BertTokenizerFlash(given.vocabulary(kind), do_lower_case=kind != "cased", model_max_length=LONGEST)
    texts = given.texts(kind)
    return [tokenizer(text, padding="longest", max_length=LONGEST)["input_ids"][0][1:-1] for text in texts]
