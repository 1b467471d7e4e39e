"""Checks before a run that its vocabulary and options are consistent."""

from absl import logging

from official_bert.config import Config, TrainingConfig
from official_bert.models.interchange import casing, formats
from official_bert.run_folder import RunFolder
from official_bert.text import loading
from official_bert.text.vocab import check_casing, has_capitals, load_vocab


def check_vocabulary(config: Config, run: RunFolder, init_checkpoint: str) -> None:
    """Raises ValueError if there is a vocabulary, and it has ids without an embedding in the model, or capitals
    although text is lower-cased.

    If the run's or checkpoint's own files ask for lower-casing with such a vocabulary, only warns.
    """
    if not (path := config.tokenizer.vocab_file):
        return
    loading.check_rows(path, config.model.vocab_size)
    if loading.lower_cases(path) is not None:
        return
    vocab, lower_case = load_vocab(path), config.tokenizer.do_lower_case
    if lower_case and has_capitals(vocab) and _lower_cases_already(path, run, init_checkpoint):
        logging.warning(
            "%s: more than 1 %% of its entries have capital letters, but text is lower-cased, as in earlier training",
            path,
        )
    else:
        check_casing(path, vocab, lower_case)


def _lower_cases_already(vocab_file: str, run: RunFolder, init_checkpoint: str) -> bool:
    """Whether the files of the run in a folder say that text is lower-cased or, if there is none, those of the
    checkpoint.
    """
    if run.has_begun:
        return run.recorded_config().tokenizer.do_lower_case and run.casing_is_chosen
    return bool(
        init_checkpoint and casing.is_lower_case(casing.with_vocabulary(formats.read(init_checkpoint), vocab_file))
    )


def check_patience(training: TrainingConfig, is_measured: bool, phases: int = 1) -> None:
    """Raises ValueError if `training.patience` is set without evaluations to count, or with more than one phase."""
    if not training.patience:
        return
    if not is_measured:
        raise ValueError(f"{_no_patience(training)}: it counts evaluations, and there is no evaluation data")
    check_counted(training)
    if phases > 1:
        raise ValueError(f"{_no_patience(training)}: config.phases says how many steps a run has")


def check_counted(training: TrainingConfig) -> None:
    """Raises ValueError if `training.patience` is set but only the last step is evaluated, whatever the data."""
    if training.patience and not (training.eval_every or training.eval_epochs):
        raise ValueError(
            f"{_no_patience(training)}: it counts evaluations, and only the last weights are measured; "
            "training.eval_every or eval_epochs says when others are"
        )


def _no_patience(training: TrainingConfig) -> str:
    return f"config.training.patience: expected 0, got {training.patience}"


def check_reinitialized(config: Config, init_checkpoint: str) -> None:
    """Raises ValueError for re-initialised layers without a checkpoint for the others."""
    if config.training.reinitialize_layers and not init_checkpoint:
        raise ValueError(
            "config.training.reinitialize_layers: expected --init_checkpoint with it; without one, all weights are new"
        )
