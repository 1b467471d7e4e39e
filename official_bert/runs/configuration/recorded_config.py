"""Finds the configuration of a run that is used without further training."""

from collections.abc import Callable

from official_bert.config import (
    Config,
    ConfigSources,
    build,
    differences,
    inherited_and_own,
    may_change,
    merge,
    to_dict,
)
from official_bert.models.interchange import casing
from official_bert.run_folder import RunFolder
from official_bert.storage.files import exists
from official_bert.tasks.loading import check_named
from official_bert.text import loading


def config_of_run(
    output_dir: str, init_checkpoint: str, sources: ConfigSources, report: Callable[[str], None] = print
) -> Config | None:
    """Returns the configuration of the run in `output_dir`, or of the run at `init_checkpoint` if it has the same task;
    None if neither is a run.

    Reports the differences from training, and the YAML's values that are ignored. Raises ValueError for another casing
    or vocabulary.
    """
    for run in (RunFolder(output_dir), RunFolder.holding(init_checkpoint) or RunFolder("")):
        folder, trained, config = run.path, run.config(), run.config(sources.overrides, sources.flags)
        if trained and config and (folder == output_dir or trained.task == config.task):
            if f"task={trained.task}" not in sources.overrides:
                check_named(trained.task, folder)
            casing.agreed(trained.tokenizer.do_lower_case, config.tokenizer.do_lower_case, folder)
            for vocab_file in (sources.flags.get("tokenizer.vocab_file"), config.tokenizer.vocab_file):
                _check_same_words(trained.tokenizer.vocab_file, vocab_file or "", folder)
            if changed := [
                change.describe()
                for change in differences(to_dict(trained), to_dict(config))
                if not may_change(change.key)
            ]:
                report(f"{folder}: other than in training: {'; '.join(changed)}")
            if sources.path and (unread := _unread(sources.path, trained)):
                report(
                    f"{sources.path}: the run in {folder} overrides its values, but not those of --set: "
                    f"{'; '.join(unread)}"
                )
            return config
    return None


def _unread(path: str, config: Config) -> list[str]:
    """Describes the values of a YAML, without those of its `base:`, that are other than those of a run."""
    in_file = to_dict(build(Config, merge(to_dict(config), inherited_and_own(path)[1]), "config"))
    return [
        change.describe() for change in differences(in_file, to_dict(config)) if change.key != "tokenizer.vocab_file"
    ]


def _check_same_words(run_file: str, vocab_file: str, folder: str) -> None:
    """Raises ValueError for a vocabulary file with other words than that of the run in a folder, if there are both."""
    if (
        vocab_file != run_file
        and exists(run_file)
        and exists(vocab_file)
        and loading.entries(run_file) != loading.entries(vocab_file)
    ):
        raise ValueError(
            f"--vocab_file={vocab_file}: {folder} was trained with another vocabulary; leave --vocab_file out to use "
            f"its own"
        )
