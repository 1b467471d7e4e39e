r"""Fine-tunes BERT on a task, evaluates it, and writes predictions.

    python -m official_bert.run_finetuning --task=mrpc --data_dir=glue/MRPC --init_checkpoint=uncased_L-12 \
        --output_dir=runs/mrpc
    python -m official_bert.run_finetuning --config=reviews.yaml --train_file=train.csv --eval_file=dev.csv \
        --predict_file=new.csv --init_checkpoint=uncased_L-12 --output_dir=runs/reviews

A task is a name in official_bert/tasks/loading.py, a data set of `glue`, or the dotted name of your own module. The
same command again continues a stopped run.
"""

from official_bert.command_line import run_main

import dataclasses
import gc
import os
from typing import TYPE_CHECKING

from absl import flags

from official_bert import command_line, flags_of_2018
from official_bert.config import Config, ConfigSources, may_change
from official_bert.reports.metric_text import metric_lines
from official_bert.training.machines import cluster

if TYPE_CHECKING:
    from official_bert.runs.fine_tuning import FineTuning

FLAGS = flags.FLAGS
command_line.define_base("init_checkpoint")
flags.DEFINE_string("task", None, "The task; by default that of --config.")
flags.DEFINE_string("data_dir", "", "A folder in the task's published layout.")
flags.DEFINE_string("train_file", "", "Training data, instead of the file in --data_dir.")
flags.DEFINE_string("eval_file", "", "Evaluation data, instead of the file in --data_dir.")
flags.DEFINE_string("predict_file", "", "Data to predict, instead of the file in --data_dir.")
flags.DEFINE_string("encoding", "", "The encoding of tables of text, such as cp1252 or utf-16; detected by default.")
flags.DEFINE_string(
    "output_dir", None, "The folder for checkpoints, configuration, logs, results and predictions.", required=True
)
flags.DEFINE_string(
    "init_checkpoint", "", "The initial weights: a TF 1 checkpoint, a Hugging Face folder or one of ours."
)
flags.DEFINE_bool("do_train", True, "Train.")
flags.DEFINE_bool("do_eval", True, "Evaluate on the evaluation data.")
flags.DEFINE_bool(
    "do_predict", None, "Write the task's prediction files for the test data; by default with --predict_file."
)
flags.DEFINE_bool("allow_same_data", False, "Only warn if the evaluation data are the training data, for smoke tests.")
flags.DEFINE_bool(
    "predict_best",
    None,
    "Predict with the best checkpoint of the run, or (--nopredict_best) with the last; by default as "
    "training.answer_with says: the best.",
)
flags.DEFINE_bool(
    "grid", False, "Train the paper's grid (batch 16, 32; rate 5e-5 to 2e-5; 2 to 4 epochs) and keep the best run."
)
flags.DEFINE_multi_string(
    "vary",
    [],
    "A grid of your own: --vary optimizer.learning_rate=2e-5,3e-5, once for each key; with --random also ranges.",
)
flags.DEFINE_integer(
    "random",
    0,
    "Train this many settings, drawn from --vary, which may have ranges: --vary "
    "'optimizer.learning_rate=loguniform(1e-5,1e-4)', uniform(a,b), integers(a,b).",
    lower_bound=0,
)
flags.DEFINE_integer(
    "folds",
    0,
    "Cross-validation: hold out each of this many parts of the training data once; reports mean and standard "
    "deviation.",
    lower_bound=0,
)
flags.DEFINE_integer("seeds", 1, "Train with this many seeds; reports mean and standard deviation.", lower_bound=1)
command_line.define_configuration()
command_line.define_placement()
command_line.define_hours_and_cache()
flags_of_2018.define_2018(
    [
        "vocab_file",
        "do_lower_case",
        "max_seq_length",
        "train_batch_size",
        "eval_batch_size",
        "learning_rate",
        "num_train_epochs",
        "num_train_steps",
        "warmup_proportion",
        "save_checkpoints_steps",
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """The flags of these names, of which a search of several runs is made."""

    grid: bool
    vary: list[str]
    random: int
    folds: int
    seeds: int

    @property
    def is_asked(self) -> bool:
        """Whether several runs are trained."""
        return bool(self.grid or self.vary or self.random or self.folds or self.seeds > 1)


def main(_: list[str]) -> None:
    """Trains, evaluates and predicts; a grid, random settings, several seeds or folds if asked for."""
    placement = cluster.Placement(**command_line.placement_values(FLAGS))
    sources, searching = command_line.config_sources(FLAGS), command_line.from_flags(SearchFlags, FLAGS)
    if (FLAGS.do_train or FLAGS.do_eval) and not searching.is_asked:  # the first worker alone predicts
        cluster.meet(placement)
    from official_bert.models.checkpoints import merged_copy
    from official_bert.run_folder import RunFolder
    from official_bert.runs.configuration.task_config import make_config
    from official_bert.runs.fine_tuning import FineTuning
    from official_bert.tasks.data import DataFiles, Steps
    from official_bert.tasks.loading import load_task

    predicts = bool(FLAGS.predict_file) if FLAGS.do_predict is None else FLAGS.do_predict
    steps, run = Steps(train=FLAGS.do_train, evaluate=FLAGS.do_eval, predict=predicts), RunFolder(FLAGS.output_dir)
    if not (steps.train or searching.is_asked) and (best := run.best_of_search):
        run, sources = best, without_varied(sources)
    start = merged_copy(FLAGS.init_checkpoint, FLAGS.base)
    config = make_config(FLAGS.task or "", sources, start, run.path, steps.train)
    files = command_line.from_flags(DataFiles, FLAGS, cache_dir=os.path.expanduser(FLAGS.cache_dir))
    tuning = FineTuning(
        load_task(config), files, run, placement, start, steps, FLAGS.predict_best, asked_keys=sources.keys()
    )
    if searching.is_asked:
        search_settings(searching, tuning)
    else:
        print(f"{metric_lines(tuning.carry_out())}\ncheckpoints, configuration, log and results: {run.file('')}")


def without_varied(sources: ConfigSources) -> ConfigSources:
    """Returns the sources without the flags that a search may have varied: its best run keeps them, whatever the
    command line says.
    """
    # of the files to read
    kept = {key: value for key, value in sources.flags.items() if may_change(key) or key == "options.encoding"}
    return dataclasses.replace(sources, flags=kept)


def search_settings(values: SearchFlags, first: "FineTuning") -> None:
    """Trains all settings, seeds and folds of `first`, and predicts with the best run if that is asked for."""
    import keras

    from official_bert.run_folder import RunFolder
    from official_bert.runs import search
    from official_bert.runs.configuration.task_config import check_settings
    from official_bert.storage.files import normal
    from official_bert.tasks.data import TRAIN_AND_EVALUATE
    from official_bert.tasks.loading import load_task
    from official_bert.text import loading

    check_search(values, first)
    task, config, steps = first.task, first.task.config, first.steps

    def train_one(changed: Config, folder: str) -> dict[str, float]:
        try:
            return dataclasses.replace(
                first,
                task=load_task(changed),
                run=RunFolder(folder),
                steps=TRAIN_AND_EVALUATE,
                best=None,
                opened=dataclasses.replace(steps, compared=True),
            ).carry_out()
        finally:
            keras.backend.clear_session()
            gc.collect()  # models and graphs refer to each other: their memory is wanted for the next run

    origin = task.data.digests(first.files) | {
        "init_checkpoint": first.init_checkpoint and normal(first.init_checkpoint)
    }
    if vocab_file := config.tokenizer.vocab_file:
        origin["vocabulary"] = loading.digest(vocab_file)
    grid: search.Grid = {**(search.PAPER_GRID if values.grid else {}), **search.parse_vary(values.vary)}
    if both := sorted(set(first.asked_keys) & grid.keys()):
        raise ValueError(f"{both[0]}: expected one value (--set, or its flag) or several (--vary, --grid), got both")
    settings = search.draw_settings(grid, values.random, config.seed) if values.random else search.settings_of(grid)
    check_settings(config, settings, first.asked_keys, first.placement, first.init_checkpoint, steps)
    with first.run.locked():
        outcomes, best = search.search(
            config,
            settings,
            values.seeds,
            first.run.path,
            task.answers.best_metric(),
            train_one,
            origin=origin,
            folds=values.folds,
        )
    print(*search.describe(outcomes, task.answers.best_metric(), values.folds), f"  {best}", sep="\n")
    if steps.predict:
        trained = load_task(RunFolder(best).require_config())  # with its own values, and the labels that it found
        only = dataclasses.replace(steps, train=False, evaluate=False)
        dataclasses.replace(first, task=trained, run=RunFolder(best), init_checkpoint="", steps=only).carry_out()


def check_search(values: SearchFlags, first: "FineTuning") -> None:
    """Raises ValueError for steps, data or a strategy that a search of several runs cannot have."""

    def refuse(reason: str) -> None:
        raise ValueError(f"--grid, --vary, --random, --folds and --seeds: {reason}")

    if not (first.steps.train and first.steps.evaluate):
        refuse("expected --do_train and --do_eval with them")
    if first.placement.strategy == "multi_worker":  # TensorFlow connects the workers of a process once, for one model
        refuse(
            "expected another --strategy than multi_worker, which trains one run; start a command with its own "
            "--output_dir for each run"
        )
    if values.folds and first.steps.predict:
        raise ValueError(
            "--folds: expected no --predict_file and no --do_predict with it, because the model of a fold has not seen "
            "all rows; train the best setting without --folds to predict with it"
        )
    if first.task.answers.constant_answers(first.files, first.steps):
        refuse("expected a model to train, but this task gives every row the same answer")


if __name__ == "__main__":
    run_main(main)
