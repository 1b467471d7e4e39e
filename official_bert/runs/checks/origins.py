"""Checks that a resumed run has the same configuration, data, vocabulary and initial checkpoint as before.

The configuration is in the run's folder, and the origin of the run in `data.json` beside it.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_bert.config import Config, Difference, differences, may_change, merge, plain_defaults, to_dict
from official_bert.long_work.provenance import changed_keys
from official_bert.run_folder import RunFolder
from official_bert.storage.files import absolute, exists
from official_bert.text import loading
from official_bert.training.phase import PhasePlan
from official_bert.typed_values import without_unknown

if TYPE_CHECKING:
    from official_bert.objectives.distilled import Distilled

FLAG_OF = {"train": "--train_file", "eval": "--eval_file"}
START = "start"  # the path of the initial checkpoint
TEACHER = "teacher"  # the digest of its weights
NAMED = 3  # files of a kind in a message


def check_same_run(
    config: Config, run: RunFolder, sections: tuple[str, ...] = ("",), options: type | None = None
) -> list[Difference]:
    """Returns the permitted changes of values since the run in the folder began.

    An option that is left out has its default in the task's `options`. The casing may be chosen with the first
    vocabulary. Raises ValueError, naming the keys, if values that begin with one of `sections` have changed and may
    not.
    """
    if not run.has_begun:
        return []
    every = differences(_completed(run.recorded_config(), options), _completed(config, options))
    free = () if run.casing_is_chosen else ("tokenizer.do_lower_case",)
    wrong = [
        change
        for change in every
        if change.key.startswith(sections)
        and not may_change(change.key)
        and change.key not in free
        and not (change.key == "phases" and _phases_may_follow(change.before, change.after, run.steps_done))
    ]
    if wrong:
        raise run.another_run(
            f"another configuration ({'; '.join(change.describe() for change in wrong)})",
            "give another folder, or the same values to resume it",
        )
    return every


def _completed(config: Config, options: type | None) -> dict[str, Any]:
    """Returns a configuration as plain values, with the default of each option that is left out, in its phases too."""
    known = without_unknown(options, config.options) if options else config.options
    plain = to_dict(dataclasses.replace(config, options=known))
    plain["options"] = merge(plain_defaults(options), plain["options"])
    plain["phases"] = [
        phase
        | {
            "options": merge(plain["options"], phase["options"]),
            "batch_size": phase["batch_size"] or config.training.batch_size,
        }
        for phase in plain["phases"]
    ]
    return plain


def _phases_may_follow(before: Sequence[Mapping], after: Sequence[Mapping], done: int) -> bool:
    """Whether a run that has done so many steps may go on with other phases: with other steps of those to come, and
    with more.

    A phase that has been left must have its steps; accumulation is free.
    """
    free = {"steps": 0, "accumulation_steps": 0}
    first = 0
    for old, new in zip(before, after):
        if {**old, **free} != {**new, **free} or (
            old["steps"] != new["steps"] and first + min(old["steps"], new["steps"]) < done
        ):
            return False
        first += old["steps"]
    return len(after) >= len(before) or first >= done


def origin_of(
    config: Config, digests: Mapping[str, str], phases: Sequence[PhasePlan], distilled: "Distilled | None" = None
) -> dict[str, Any]:
    """Returns the origin of a run (its data, vocabulary and teacher), as JSON types.

    Its keys are `train` and `eval`, the digests of the task's files; without them `train_content` and `eval_content`,
    those of the sources of batches (`eval_content` beside `train`: a part of the training file is held out);
    `vocabulary`, the digest of the vocabulary's content; and that of a teacher.
    """
    origin: dict[str, Any] = dict(digests)
    if "train" not in digests:
        origin["train_content"] = _all([phase.source.content for phase in phases])
    if "eval" not in digests:
        origin["eval_content"] = _all([phase.held_out.source.content for phase in phases if phase.held_out])
    if distilled and (teacher := distilled.targets.teacher):
        origin[TEACHER] = teacher.digest
    if config.tokenizer.vocab_file:
        origin["vocabulary"] = loading.digest(config.tokenizer.vocab_file)
    return {key: value for key, value in origin.items() if value}


def same_everywhere(config: Config, init_checkpoint: str) -> list:
    """Returns the settings that all workers of a run must share, as JSON types; file paths may differ between
    workers.
    """
    return [
        to_dict(dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, vocab_file=""))),
        bool(init_checkpoint),
    ]


def _all(contents: Sequence[list]) -> list:
    """The items of several lists, each once, in their order."""
    items = itertools.chain.from_iterable(contents)
    return [json.loads(text) for text in dict.fromkeys(map(json.dumps, items))]


def changes(origin: Mapping[str, Any], run: RunFolder) -> list[str]:
    """Returns descriptions of the differences from the recorded origin of the folder's run; [] if there are none, or
    nothing is recorded.
    """
    before = run.origin
    changed = [
        _describe(key, before[key], origin[key])
        for key in changed_keys(before, origin)
        if not (key == START and _may_be_moved(before[key], origin[key]))
    ]
    if START in origin and run.checkpoints() and before and START not in before:
        changed.append("first weights of its own, without --init_checkpoint")
    return changed + _other_division(before, origin)


def _may_be_moved(before: str, path: str) -> bool:
    """Whether two paths are the same place, or there is nothing any more at the first one."""
    return before == absolute(path) or not (exists(before) or exists(f"{before}.index"))


def _other_division(before: Mapping[str, Any], origin: Mapping[str, Any]) -> list[str]:
    """Says that a part of the training file is held out where none was, or the other way round: then the training rows
    are others.
    """
    # no whole origin of a fine-tuning
    if "train" not in before or "train_content" in before or "vocabulary" not in origin:
        return []
    held_out = "eval_content" in before
    if held_out == ("eval_content" in origin):
        return []
    return ["a part of its training data held out" if held_out else "none of its training data held out"]


def check_unchanged(origin: Mapping[str, Any], run: RunFolder) -> None:
    """Raises ValueError, with the differences, if the run in the folder has another origin."""
    if changed := changes(origin, run):
        raise run.another_run("; ".join(changed), "give another folder, or --allow_changed_data to continue with these")


def check_held_out_part(digests: Mapping[str, str], run: RunFolder, folds: bool = False) -> None:
    """Raises ValueError if an evaluation without a file of its own would hold out rows on which the run in the folder
    has trained.

    With `folds`, an evaluation file in `--data_dir` is not read.
    """
    before = run.origin
    if ("eval" in digests and not folds) or not {"train"} <= digests.keys() & before.keys():
        return
    if not {"eval_content", *(["eval"] if folds else [])} & before.keys():
        raise ValueError(
            f"--output_dir={run.path}: its run held out no part of the training file; expected --eval_file"
        )
    if digests["train"] != before["train"]:
        raise ValueError(
            f"--output_dir={run.path}: its run held out a part of another training file; expected that file, or "
            f"--eval_file"
        )


def trained_on(content: Sequence[list], run: RunFolder) -> list[str]:
    """Returns the names of a source's files on which the run in the folder was trained."""
    trained = run.origin.get("train_content", [])
    return [str(item[0]) for item in content if item in trained and len(item) > 2]


def evaluates_on_training_file(digests: Mapping[str, str], run: RunFolder) -> bool:
    """Returns whether an evaluation file is the training file of the run in the folder."""
    return digests.get("eval", "") == run.origin.get("train")


def evaluates_otherwise(origin: Mapping[str, Any], run: RunFolder) -> bool:
    """Returns whether the run in the folder was evaluated on other data, so that its metrics are not comparable."""
    before = run.origin
    return any(key.startswith("eval") for key in changed_keys(before, origin)) or bool(_other_division(before, origin))


def write(origin: Mapping[str, Any], run: RunFolder, goes_on: bool = True) -> None:
    """Records a run's origin; if the run continues there, keeps other recorded keys, such as the initial checkpoint.

    Records of a run that was killed before its first checkpoint do not apply to the run that starts now.
    """
    before = run.origin if goes_on else {}
    kept = {key: value for key, value in before.items() if not key.startswith("eval") or "train" not in origin}
    run.write_origin(kept | dict(origin))


def _describe(key: str, before: Any, after: Any) -> str:
    if key == "vocabulary":
        return "another vocabulary (--vocab_file has another content)"
    if key == TEACHER:
        return "other weights of training.teacher"
    if key == START:
        return f"another --init_checkpoint, {before}"
    if key in FLAG_OF:
        hint = " (--nodo_train evaluates it on these)" if key == "eval" else ""
        return f"another content of {FLAG_OF[key]} (or its file in --data_dir){hint}"
    use = {"train_content": "training", "eval_content": "evaluation"}[key]
    differing = [
        f"{_some(items)} {place}"
        for place, content, other in (("there", before, after), ("here", after, before))
        if (items := [item for item in content if item not in other])
    ]
    return f"other {use} data: {', '.join(differing)}" if differing else f"its {use} data in another order"


def _some(items: Sequence[Any]) -> str:
    """The first few files, or other parts, of some data."""
    names = [_describe_item(item) for item in items]
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _describe_item(item: Any) -> str:
    if not isinstance(item, list) or len(item) < 2:
        return str(item)
    return f"{item[1]} packed rows" if len(item) == 2 else f"{item[0]} ({item[2]} records, {item[1]} bytes)"
