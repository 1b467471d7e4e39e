"""Fine-tuning with the output files of 2018's `run_classifier.py`."""

from official_bert.models.checkpoints import trained_weights
from official_bert.run_folder import RunFolder, step_of
from official_bert.runs import fine_tuning
from official_bert.runs.checks import origins
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.task import TaskBase
from official_bert.tasks.texts.base import TextSets
from official_bert.training.machines.cluster import Placement, is_first_worker


def classify_as_in_2018(
    task: TaskBase, files: DataFiles, run: RunFolder, placement: Placement, init_checkpoint: str, steps: Steps
) -> None:
    """Trains, evaluates and predicts as `FineTuning` does, with the output files of 2018's `run_classifier.py`: the
    names in `eval_results.txt`, and the probabilities of the labels.
    """
    best = task.config.training.answer_with == "best"
    if not steps.train:
        changed = origins.check_same_run(task.config, run, (), task.Options)
        if changed_options := [change.describe() for change in changed if change.key.startswith("options.")]:
            print(f"{run.path}: other than in training: {'; '.join(changed_options)}")
    metrics = fine_tuning.FineTuning(
        task,
        files,
        run,
        placement,
        init_checkpoint,
        steps,
        best,
        named_results=False,
        write_answers=TextSets.write_probabilities,
    ).carry_out()
    if steps.evaluate and is_first_worker(placement):
        results: dict[str, float] = {f"eval_{name}": value for name, value in metrics.items() if name != "step"}
        if run.has_weights(best):
            results["global_step"] = step_of(trained_weights(run, best=best))
        run.write_results(results | ({"loss": metrics["loss"]} if "loss" in metrics else {}))
