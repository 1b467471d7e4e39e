r"""Zips the predictions of fine-tuning runs for GLUE's test sets, in the form that its server takes: one archive
without folders.

    # and so on
    python -m official_bert.run_finetuning --task=rte --data_dir=glue --do_predict ... \
        --output_dir=runs/glue/rte
    python tools/glue_submission.py --runs='runs/glue/*' --output_file=submission.zip
"""

from official_bert.command_line import run_main

import os
import zipfile

from absl import flags

from official_bert.storage.files import is_file, matching, read_bytes, written_beside
from official_bert.tasks.texts.glue_files import SUBMISSION_FILES

FLAGS = flags.FLAGS
flags.DEFINE_list("runs", None, "Output folders or globs, each with the files of one or more tasks.", required=True)
flags.DEFINE_string("output_file", None, "The archive.", required=True)
flags.DEFINE_bool(
    "partial", False, "Write the archive even if files of some tasks are missing (the server will refuse it)."
)


def find_predictions(patterns: list[str]) -> dict[str, str]:
    """Returns {name without .tsv: path} of the files to submit.

    Raises ValueError if a file is in two folders, or if there is none.
    """
    paths: dict[str, str] = {}
    for folder in (path for pattern in patterns for path in matching(pattern)):
        for name in SUBMISSION_FILES:
            path = os.path.join(folder, f"{name}.tsv")
            if is_file(path) and paths.setdefault(name, path) != path:
                raise ValueError(f"{path}: {paths[name]} exists too; name the runs to submit with --runs")
    if not paths:
        raise ValueError(
            f"--runs={','.join(patterns)}: none of {', '.join(f'{name}.tsv' for name in SUBMISSION_FILES)} found "
            "there; run_finetuning writes them with --do_predict"
        )
    return paths


def main(_: list[str]) -> None:
    """Finds the files, zips them, and prints the contents of the archive."""
    paths = find_predictions(FLAGS.runs)
    missing = [name for name in SUBMISSION_FILES if name not in paths]
    if missing and not FLAGS.partial:
        raise ValueError(
            f"--runs={','.join(FLAGS.runs)}: no file of {', '.join(missing)}; --partial writes the archive without them"
        )
    with (
        written_beside(FLAGS.output_file) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in sorted(paths):
            archive.writestr(f"{name}.tsv", read_bytes(paths[name]))
        archive.close()
    print(f"{FLAGS.output_file}: {', '.join(f'{name}.tsv' for name in sorted(paths))}")
    if missing:
        print(f"missing: {', '.join(missing)}")


if __name__ == "__main__":
    run_main(main)
