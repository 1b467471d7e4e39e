"""Errors for callers of Python functions: they name keywords instead of flags and keys of the configuration."""

import contextlib
import re
from collections.abc import Iterator

from official_bert.fields import OptionsNeededError, as_keywords

OPTION = re.compile(r"--set options\.|(?<![\w.])options\.(?=[a-z])|(?<![\w-])--([a-z]\w+)")
WORD = re.compile(r"(?:--set )?(?<![\w.])options\.([a-z]\w*)=([A-Za-z]\w*)")  # an option with a word as its value
# Flags and their keywords; other flags are those of commands that a message names. `eval` is `data` of functions that
# only evaluate.
KEYWORDS = {
    "train_file": "train",
    "eval_file": "eval",
    "predict_file": "predict",
    "do_train": "train",
    "do_eval": "eval",
    "do_predict": "predict",
} | {
    name: name
    for name in (
        "data_dir",
        "output_dir",
        "cache_dir",
        "init_checkpoint",
        "config",
        "vocab_file",
        "encoding",
        "allow_same_data",
    )
}


@contextlib.contextmanager
def keyword_errors(**keywords: str) -> Iterator[None]:
    """Makes errors that are raised within, or in a function that it decorates, name keywords.

    So `--encoding=` and `options.encoding=` become `encoding=`, and `options.empty_text=skip` `empty_text="skip"`.
    `keywords` are names of flags with those of their keywords, beside `KEYWORDS`.
    """
    names = KEYWORDS | keywords
    try:
        yield
    except ValueError as error:
        if type(error) in (ValueError, OptionsNeededError):
            problem = error.problem if isinstance(error, OptionsNeededError) else str(error)
            text = WORD.sub(lambda option: f"{option[1]}={_as_python(option[2])}", problem)
            text = OPTION.sub(lambda option: names.get(option[1], option[0]) if option[1] else "", text)
            if isinstance(error, OptionsNeededError):
                rows = "".join(f"\n  {row}" for row in error.rows) + "\n" * bool(error.rows)
                text = f"{text}; expected {rows}{' or '.join(map(as_keywords, error.readings))}"
            error.args = (text,)
        raise


def _as_python(word: str) -> str:
    """Returns a word of YAML as it is written in Python."""
    return word.capitalize() if word in ("true", "false") else f'"{word}"'
