"""Fine-tunes on questions in SQuAD's format and answers them, with one run or with the mean logits of several."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from official_bert.config import AS_IN_2018, FINE_TUNING, Config, ConfigSources, build, merge, to_dict
from official_bert.models.checkpoints import checkpoint_at
from official_bert.reports.metric_text import metric_lines
from official_bert.run_folder import RunFolder, tuned_for
from official_bert.runs import ending, fine_tuning
from official_bert.runs.configuration import run_config
from official_bert.tasks import answering
from official_bert.tasks.answers import Measured
from official_bert.tasks.data import DataFiles, Resolved, Steps
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.tasks.squad import languages, metrics, reading
from official_bert.tasks.squad.task import Task, average_logits
from official_bert.training.machines.cluster import Placement

ANSWERS_OF_2018 = merge(AS_IN_2018, {"options": {"answer_alignment": 2018}})


def check_task(config: Config) -> None:
    """Raises ValueError for another task, and for a threshold that no question would meet."""
    if config.task != "squad":
        raise ValueError(f"config.task: expected squad, got {config.task!r}")
    if config.options.get("null_score_diff_threshold") and not config.options.get("version_2_with_negative"):
        raise ValueError(
            "--null_score_diff_threshold: expected --version_2_with_negative with it, else every question is answered"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionRun:
    """A run on questions and what its user asks for: the training, answers in a file, a table of languages."""

    run: RunFolder
    sources: ConfigSources
    files: DataFiles  # `predict_file` is answered, and evaluated if it has gold answers
    init_checkpoint: str = ""
    trains: bool = False
    answers: bool = False
    ensemble: Sequence[str] = ()  # runs whose logits are averaged, instead of those of `run`
    eval_files: Sequence[str] = ()  # in several languages

    def __post_init__(self) -> None:
        """Raises ValueError for steps without their data or their runs, and for files that answers would replace."""
        if not (self.trains or self.answers or self.eval_files):
            raise ValueError("expected --do_train, --do_predict or both, got neither")
        if self.trains and not self.files.train_file:
            raise ValueError("--do_train: expected --train_file")
        if self.answers and not self.files.predict_file:
            raise ValueError("--do_predict: expected --predict_file")
        if self.answers:
            dataclasses.replace(self.files, eval_file="").check_not_answers(self.run.path)  # which is the same file
        if self.ensemble and not self.answers:
            raise ValueError("--ensemble: expected --do_predict with it")
        if self.eval_files and self.ensemble:
            raise ValueError("--eval_files: expected no --ensemble with it")
        for folder in map(RunFolder, self.ensemble):
            if not (self.trains and folder.is_same(self.run)):
                RunFolder.require(folder.path)

    def train(self, placement: Placement) -> Measured:
        """Fine-tunes into the run's folder, or continues there; first checks what is measured afterwards."""
        config = self._config()
        run_config.refuse_overridden(config, self.sources.keys())
        task = load_task(config)
        version_2 = task.options.version_2_with_negative
        languages.check(self.eval_files, version_2)
        if self.answers:
            articles = reading.read_squad(str(self.files.predict_file)).articles
            if metrics.has_gold_answers(articles, version_2):
                metrics.check_answers(articles, version_2, str(self.files.predict_file))
        steps = Steps(evaluate=config.training.eval_every > 0 or config.training.eval_epochs > 0)
        return fine_tuning.FineTuning(task, self.files, self.run, placement, self.init_checkpoint, steps).train()

    def answer(self) -> Measured | None:
        """Answers the questions and writes the answers; if there are gold answers, writes and returns the metrics."""
        first, model = self._trained(self.ensemble[0] if self.ensemble else self.run.path)
        task = self._as_asked(first)
        questions: Any = task.data.resolve(
            DataFiles(predict_file=self.files.predict_file), Steps(train=False, evaluate=False, predict=True), model
        ).tests
        if questions.have_gold_answers:
            questions.check_answers()
        logits: list[list[dict[str, Any]]] = []
        for folder in self.ensemble or [self.run.path]:
            trained, model = self._trained(folder) if logits else (first, model)
            task.data.check_same_rows(trained, folder)
            logits.append(answering.predict(task, model, questions.source))
        rows = average_logits(logits)
        if not questions.have_gold_answers and not self.ensemble:
            stored = tuned_for(checkpoint_at(self.run.path if self.run.has_begun else self.init_checkpoint))
            questions = dataclasses.replace(
                questions, task=fine_tuning.with_tuned(task, stored, self.sources.keys(), print)
            )
        print("\n".join(questions.write(rows, self.run.path)))
        if not questions.have_gold_answers:
            return None
        results = questions.evaluate(rows)
        self.run.write_results(results)
        if not self.ensemble and self.run.has_begun:  # else the weights lie elsewhere
            fine_tuning.store_tuned(task, results, self.run, self.run.recorded_config().training.answer_with == "best")
        print(metric_lines(results))
        return Measured(results, Resolved(task=task, model=model, held_out=questions), rows)

    def write_card(self, trained: Measured, answered: Measured | None) -> None:
        """Writes the model card of a training, with what its answers were worth."""
        if answered and not self.ensemble:
            resolved = dataclasses.replace(trained.resolved, held_out=answered.resolved.held_out)
            trained = dataclasses.replace(answered, resolved=resolved)
        ending.documents().write_card(self.run, trained, self.files, print)

    def measure(self) -> None:
        """Answers and measures the questions of files in several languages; writes the answers and a table."""
        trained, model = self._trained(self.run.path)
        task = self._as_asked(trained)
        task.data.check_same_rows(trained, self.run.path)
        if not self.trains:  # else `train` did
            languages.check(self.eval_files, task.options.version_2_with_negative)
        rows = languages.evaluate(task, model, self.eval_files, self.run.path, logging.warning)
        print(languages.table(rows), end="")
        print("\n".join(languages.write(rows, self.run.path)))

    def _trained(self, folder: str) -> tuple[Task, keras.Model]:
        """Returns the task and the model of a run's folder or, as 2018 allows, of a fine-tuned checkpoint of any
        format.
        """
        if RunFolder(folder).has_begun or self.ensemble or self.trains or not self.init_checkpoint:
            return load_task(RunFolder.require(folder).require_config(), folder), restore_for_inference(folder)[1]  # type: ignore[return-value]
        task = load_task(self._config())
        model = task.build_model()
        answering.take_all(task, model, self.init_checkpoint)
        return task, model  # type: ignore[return-value]

    def _config(self) -> Config:
        """Returns the configuration of a training, or of a fine-tuned checkpoint that is no run; reads their files."""
        sources = self.sources if self.sources.path else self.sources.over("task=squad")
        defaults = merge({} if self.sources.path else FINE_TUNING, ANSWERS_OF_2018)
        config = run_config.of_training(sources, self.init_checkpoint, self.run, defaults)
        check_task(config)
        run_config.require_vocabulary(config, self.init_checkpoint, self.trains)
        return config

    def _as_asked(self, trained: Task) -> Task:
        """Returns the task of a trained model with the options that the user gives."""
        flags = {key: value for key, value in self.sources.flags.items() if value != ""}
        _, asked_values = ConfigSources(flags=flags, overrides=self.sources.overrides).read()
        task_config = build(Config, merge(to_dict(trained.config), asked_values))
        check_task(task_config)
        return load_task(task_config)  # type: ignore[return-value]
