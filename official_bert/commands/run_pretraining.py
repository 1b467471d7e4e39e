"""Pre-trains BERT on records.

    python -m official_bert.run_pretraining --config=configs/pretrain/small.yaml --input_file='train-*.tfrecord' \
        --eval_input_file=held_out.tfrecord --vocab_file=vocab.txt --output_dir=runs/small --strategy=one_device

The same command again continues a stopped run. The flags of 2018's script work too.
"""

from official_bert.command_line import run_main

import dataclasses
import math
import os
from collections.abc import Mapping

from absl import flags

from official_bert import command_line, flags_of_2018
from official_bert.config import Config, ConfigSources, nest
from official_bert.data.record_files.indexed_records import check_readable
from official_bert.reports.metric_text import metric_lines
from official_bert.storage.files import find_files
from official_bert.training.machines import cluster

FLAGS = flags.FLAGS
command_line.define_base("init_checkpoint")
flags.DEFINE_string("input_file", "", "Training records: comma-separated globs.")
flags.DEFINE_string("eval_input_file", "", "Held-out records, evaluated during and after training.")
flags.DEFINE_string(
    "output_dir", "", "The folder for checkpoints, configuration and logs; not needed to evaluate --init_checkpoint."
)
flags.DEFINE_string(
    "init_checkpoint",
    "",
    "A checkpoint that gives the weights, the model's size, the vocabulary and the casing; not used "
    "if a run is resumed.",
)
flags.DEFINE_enum(
    "mode",
    "train",
    ("train", "eval", "eval_continuous"),
    "train (and evaluate if held-out records are given); eval: the newest checkpoint, or --init_checkpoint if there is "
    "none; eval_continuous: each checkpoint that another running command writes.",
)
flags.DEFINE_float(
    "idle_seconds", 3600.0, "With --mode=eval_continuous: ends if no new checkpoint appears for this long."
)
flags.DEFINE_string("profile_steps", "", "first:last, such as 100:110: profiles these steps for TensorBoard.")
flags.DEFINE_bool("do_train", None, "Train; by default, unless --do_eval is given alone.")
flags.DEFINE_bool(
    "do_eval",
    False,
    "Evaluate on --eval_input_file or, as in 2018, on --input_file: at the end of training, or the "
    "newest checkpoint. Writes eval_results.txt.",
)
command_line.define_configuration()
command_line.define_placement()
command_line.define_hours_and_cache()
flags_of_2018.define_2018(
    [
        "vocab_file",
        "do_lower_case",
        "max_seq_length",
        "max_predictions_per_seq",
        "train_batch_size",
        "eval_batch_size",
        "learning_rate",
        "num_train_steps",
        "num_warmup_steps",
        "save_checkpoints_steps",
        "iterations_per_loop",
        "max_eval_steps",
    ]
)
flags_of_2018.define_without_meaning(["master", "num_tpu_cores"])
NAMES_OF_2018 = {
    "masked_lm_accuracy": "mlm_accuracy",
    "masked_lm_loss": "mlm_loss",  # in eval_results.txt
    "next_sentence_accuracy": "nsp_accuracy",
    "next_sentence_loss": "nsp_loss",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingFlags:
    """The flags of these names."""

    input_file: str
    eval_input_file: str
    output_dir: str
    init_checkpoint: str
    mode: str
    idle_seconds: float
    profile_steps: str
    do_train: bool | None
    do_eval: bool
    allow_changed_data: bool

    @property
    def trains(self) -> bool:
        """Whether the flags of 2018 ask for a training."""
        return not self.do_eval if self.do_train is None else self.do_train

    @property
    def evaluates(self) -> bool:
        """Whether weights are evaluated once, without training."""
        return self.mode == "eval" or (self.mode == "train" and not self.trains)

    @property
    def records(self) -> list[str]:
        """The globs of all records."""
        return list(filter(None, (self.input_file, self.eval_input_file)))

    def check(self) -> None:
        """Raises ValueError for steps that are missing, or lack their folder."""
        if not self.output_dir and not (self.evaluates and self.init_checkpoint):
            raise ValueError("--output_dir: expected the folder of a run")
        if not self.trains and not self.do_eval:
            raise ValueError("--do_train and --do_eval: expected at least one of them")

    def config(self, sources: ConfigSources) -> Config:
        """Returns the configuration of a training or, to evaluate without a file, of the run that has trained."""
        from official_bert.run_folder import RunFolder
        from official_bert.runs.configuration import run_config
        from official_bert.runs.configuration.recorded_config import config_of_run

        is_given, config = bool(sources.path or sources.bert_config_file), None
        if not is_given and (self.evaluates or self.mode == "eval_continuous"):
            config = config_of_run(self.output_dir, self.init_checkpoint, sources.over("task=pretraining"))
        if config is None:
            as_in_2018 = sources.bert_config_file and not sources.path
            defaults = nest(flags_of_2018.defaults_of_2018(sources.overrides)) if as_in_2018 else None
            config = run_config.of_training(
                sources, self.init_checkpoint, RunFolder(self.output_dir), defaults, pretraining=True
            )
        run_config.refuse_overridden(config, sources.keys())
        return config

    def carry_out(self, config: Config, cache_dir: str, placement: cluster.Placement) -> dict[str, float]:
        """Trains or evaluates; returns the metrics of the last evaluation."""
        from official_bert.models.checkpoints import trained_weights
        from official_bert.run_folder import RunFolder
        from official_bert.runs import ending, evaluation, whole_run
        from official_bert.runs.configuration import run_config
        from official_bert.tasks.data import DataFiles
        from official_bert.tasks.loading import load_task

        run, best, weights = RunFolder(self.output_dir), config.training.answer_with == "best", ""
        if self.evaluates and not run.has_weights(best):
            weights = trained_weights(run, self.init_checkpoint)
            config = run_config.with_objective_of(config, weights)
        elif self.evaluates or self.mode == "eval_continuous":
            config = run_config.with_vocabulary_of(config, run, self.allow_changed_data)
        task = load_task(config)
        eval_file = self.eval_input_file or (self.input_file if self.do_eval else "")
        files = command_line.from_flags(
            DataFiles, self, train_file=self.input_file, eval_file=eval_file, cache_dir=cache_dir
        )
        if self.init_checkpoint and not self.evaluates and task.options.first_weights != "random":
            raise ValueError(
                "--init_checkpoint: expected config.options.first_weights random with it, because the checkpoint "
                f"gives the weights, got {task.options.first_weights}"
            )
        if self.mode == "eval_continuous":
            return evaluation.evaluate_continuously(task, files, run.path, placement, self.idle_seconds)
        if self.evaluates:
            return evaluation.measure(task, files, run.path, placement, weights, best=best).metrics
        trained = whole_run.train(task, files, run.path, placement, self.init_checkpoint, self.profile_steps)
        if cluster.is_first_worker(placement):
            ending.documents().write_card(run, trained, files, print)
        return trained.metrics

    def write_results(self, metrics: Mapping[str, float], best: bool) -> None:
        """Writes eval_results.txt, with 2018's names of metrics too."""
        from official_bert.models.checkpoints import trained_weights
        from official_bert.run_folder import RunFolder, step_of

        run = RunFolder(self.output_dir)
        if not self.evaluates:  # an evaluation says its step itself, if the checkpoint has one
            metrics = {"step": step_of(trained_weights(run, best=best)), **metrics}
        step = {"global_step": int(metrics["step"])} if "step" in metrics else {}
        run.write_results(
            {**metrics, **{theirs: metrics[ours] for theirs, ours in NAMES_OF_2018.items() if ours in metrics}, **step}
        )


def with_perplexities(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns metrics, with the perplexity of each loss of words."""
    losses = {"mlm_loss", "next_token_loss"} & set(metrics)
    return {**metrics, **{name.replace("_loss", "_perplexity"): math.exp(min(metrics[name], 700.0)) for name in losses}}


def main(_: list[str]) -> None:
    """Trains, and prints the last evaluation."""
    placement = cluster.Placement(**command_line.placement_values(FLAGS))
    job, cache_dir = command_line.from_flags(PretrainingFlags, FLAGS), os.path.expanduser(FLAGS.cache_dir)
    command_line.refuse_unread(
        FLAGS,
        [
            (["profile_steps"], job.mode == "train" and job.trains, "training (--mode=train)"),
            (["do_train"], job.mode == "train" or not job.do_train, "--mode=train"),
            (["idle_seconds"], job.mode == "eval_continuous", "--mode=eval_continuous"),
        ],
    )
    sources = command_line.config_sources(FLAGS)
    job.check()
    cluster.meet(
        placement,
        lambda: check_readable([path for patterns in job.records for path in find_files(patterns)], cache_dir),
    )
    from official_bert.models.checkpoints import merged_copy

    job = dataclasses.replace(job, init_checkpoint=merged_copy(job.init_checkpoint, FLAGS.base))
    config = job.config(sources)
    metrics = with_perplexities(job.carry_out(config, cache_dir, placement))
    print(metric_lines(metrics, ", "))
    if job.output_dir and job.do_eval and cluster.is_first_worker(placement):
        job.write_results(metrics, config.training.answer_with == "best")


if __name__ == "__main__":
    run_main(main)
