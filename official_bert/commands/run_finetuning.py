"""Fine-tunes BERT on a task, evaluates it, and writes predictions.

    python -m official_bert.run_finetuning --task=mrpc --data_dir=glue/MRPC --init_checkpoint=uncased_L-12 --output_dir=runs/mrpc
    python -m official_bert.run_finetuning --config=reviews.yaml --train_file=train.csv --eval_file=dev.csv \
        --predict_file=new.csv --init_checkpoint=uncased_L-12 --output_dir=runs/reviews

A task is a name in official_bert/tasks/loading.py, a data set of `glue`, or the dotted name of your own module. The same command
again continues a stopped run.
"""

from official_bert.command_line import given_flags, run_main

import dataclasses
import gc
import os

from absl import flags

from official_bert import command_line
from official_bert.config import Config, may_change
from official_bert.reports.metric_text import metric_lines
from official_bert.training.running import cluster

FLAGS = flags.FLAGS
flags.DEFINE_string("task", None, "The task; by default that of --config.")
flags.DEFINE_string("data_dir", "", "A folder in the task's published layout.")
flags.DEFINE_string("train_file", "", "Training data, instead of the file in --data_dir.")
flags.DEFINE_string("eval_file", "", "Evaluation data, instead of the file in --data_dir.")
flags.DEFINE_string("predict_file", "", "Data to predict, instead of the file in --data_dir.")
flags.DEFINE_string("encoding", "", "The encoding of tables of text, such as cp1252 or utf-16; by default UTF-8.")
flags.DEFINE_string("output_dir", None, "The folder for checkpoints, configuration, logs, results and predictions.", required=True)
flags.DEFINE_string("init_checkpoint", "", "Weights to begin with: a TF 1 checkpoint, a Hugging Face folder, one of ours.")
flags.DEFINE_bool("do_train", True, "Train.")
flags.DEFINE_bool("do_eval", True, "Evaluate on the evaluation data.")
flags.DEFINE_bool("do_predict", None, "Write the task's prediction files for the test data; by default with --predict_file.")
flags.DEFINE_bool("allow_same_data", False, "Only warn if the evaluation data are the training data, for smoke tests.")
flags.DEFINE_bool("predict_best", None, "Predict with the best checkpoint of the run, or (--nopredict_best) with the last; by default as "
                  "training.answer_with says: the best.")
flags.DEFINE_bool("grid", False, "Train the paper's grid (batch 16, 32; rate 5e-5 to 2e-5; 2 to 4 epochs) and keep the best run.")
flags.DEFINE_multi_string("vary", [], "A grid of your own: --vary optimizer.learning_rate=2e-5,3e-5, once for each key; with --random "
                          "also ranges.")
flags.DEFINE_integer("random", 0, "Train this many settings, drawn from --vary, which may have ranges: --vary "
                     "'optimizer.learning_rate=loguniform(1e-5,1e-4)', uniform(a,b), integers(a,b).", lower_bound=0)
flags.DEFINE_integer("folds", 0, "Cross-validation: hold out each of this many parts of the training data once; reports mean and standard "
                     "deviation.", lower_bound=0)
flags.DEFINE_integer("seeds", 1, "Train with this many seeds; reports mean and standard deviation.", lower_bound=1)
command_line.define_configuration()
command_line.define_placement()
command_line.define_hours()
command_line.define_resume()
command_line.define_cache()
command_line.define_2018(["vocab_file", "do_lower_case", "max_seq_length", "train_batch_size", "eval_batch_size",
                           "learning_rate", "num_train_epochs", "num_train_steps", "warmup_proportion", "save_checkpoints_steps"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchFlags:
    """The flags of these names, of which a search of several runs is made."""

    grid: bool
    vary: list[str]
    random: int
    folds: int
    seeds: int
    output_dir: str
    init_checkpoint: str
    predict_best: bool | None


def main(_) -> None:
    """Trains, evaluates and predicts; a grid, random settings, several seeds or folds if asked for."""
    placement = cluster.Placement(**command_line.placement_values(FLAGS))
    command_line.asked_values(FLAGS)  # tells what is wrong before other workers are awaited
    searching = bool(FLAGS.grid or FLAGS.vary or FLAGS.random or FLAGS.folds or FLAGS.seeds > 1)
    if (FLAGS.do_train or FLAGS.do_eval) and not searching:  # the first worker alone predicts
        cluster.meet(placement)
    from official_bert.interface import finetuning
    from official_bert.models.run_folder import RunFolder
    from official_bert.tasks.loading import load_task
    from official_bert.training import run_config
    from official_bert.training.runs import FineTuning
    from official_bert.training.task import DataFiles, Steps
    steps = Steps(train=FLAGS.do_train, evaluate=FLAGS.do_eval,
                  predict=bool(FLAGS.predict_file) if FLAGS.do_predict is None else FLAGS.do_predict)
    best_run = None if steps.train or searching else RunFolder(FLAGS.output_dir).best_of_search
    output_dir = best_run.path if best_run else FLAGS.output_dir
    # The best run of a search keeps what was varied, even if the command line is that of the search.
    flag_values = {key: value for key, value in given_flags(FLAGS).items() if output_dir == FLAGS.output_dir or may_change(key)}
    if FLAGS.encoding:
        flag_values["options.encoding"] = FLAGS.encoding
    config = finetuning.make_config(FLAGS.task or "", FLAGS.config, FLAGS.init_checkpoint, output_dir, steps.train,
                                    overrides=FLAGS.set, bert_config_file=FLAGS.bert_config_file, flags=flag_values)
    files = DataFiles(data_dir=FLAGS.data_dir, train_file=FLAGS.train_file, eval_file=FLAGS.eval_file,
                      predict_file=FLAGS.predict_file, allow_same_data=FLAGS.allow_same_data, allow_changed_data=FLAGS.allow_changed_data,
                      cache_dir=os.path.expanduser(FLAGS.cache_dir))
    asked_keys = run_config.asked_keys(flag_values, FLAGS.set)
    if searching:
        _search(command_line.from_flags(SearchFlags, FLAGS), config, files, placement, steps, asked_keys)
        return
    metrics = FineTuning(load_task(config), files, RunFolder(output_dir), placement, FLAGS.init_checkpoint, steps, FLAGS.predict_best,
                         asked_keys=asked_keys).carry_out()
    print(metric_lines(metrics))
    print(f"checkpoints, configuration, log and results: {os.path.join(output_dir, '')}")


def _search(values: SearchFlags, config: Config, files, placement, steps, asked_keys: set[str]) -> None:
    """Trains all settings, seeds and folds, and predicts with the best run if that is asked for; `asked_keys` are those that are given."""
    import keras

    from official_bert.data.cache import file_digest
    from official_bert.files import normal
    from official_bert.interface import finetuning
    from official_bert.models.run_folder import RunFolder
    from official_bert.tasks.loading import load_task
    from official_bert.training import search
    from official_bert.training.runs import FineTuning
    if not (steps.train and steps.evaluate):
        raise ValueError("--grid, --vary, --random, --folds and --seeds: expected --do_train and --do_eval beside them")
    if placement.strategy == "multi_worker":  # TensorFlow connects the workers of a process once, for one model
        raise ValueError("--grid, --vary, --random, --folds and --seeds: expected another --strategy than multi_worker, which trains one "
                         "run; give each run a command and an --output_dir of its own")
    if values.folds and steps.predict:
        raise ValueError("--folds: expected no --predict_file and no --do_predict beside it, because the model of a fold has not seen all "
                         "rows; train the best setting without --folds to predict with it")

    def train_one(changed: Config, folder: str) -> dict[str, float]:
        try:
            return FineTuning(load_task(changed), files, RunFolder(folder), placement, values.init_checkpoint, opened=compared).carry_out()
        finally:
            keras.backend.clear_session()
            gc.collect()  # models and graphs refer to each other: their memory is wanted for the next run

    task = load_task(config)
    if task.constant_answers(files, steps):
        raise ValueError("--grid, --vary, --random, --folds and --seeds: expected a model to train, but this task gives every row the same "
                         "answer")
    origin = task.data_digests(files) | {"init_checkpoint": values.init_checkpoint and normal(values.init_checkpoint)}
    if vocab_file := config.tokenizer.vocab_file:
        origin["vocabulary"] = file_digest(vocab_file)
    metric, compared = task.best_metric(), dataclasses.replace(steps, compared=True)
    grid: search.Grid = {**(search.PAPER_GRID if values.grid else {}), **search.parse_vary(values.vary)}
    if both := sorted(asked_keys & grid.keys()):
        raise ValueError(f"{both[0]}: expected one value (--set, or its flag) or several (--vary, --grid), got both")
    settings = search.draw_settings(grid, values.random, config.seed) if values.random else search.settings_of(grid)
    finetuning.check_settings(config, settings, asked_keys, placement, values.init_checkpoint, steps)
    with RunFolder(values.output_dir).locked():
        outcomes, best = search.search(config, settings, values.seeds, values.output_dir, metric, train_one, origin=origin,
                                       folds=values.folds)
    print("\n".join(search.describe(outcomes, metric, values.folds)))
    print(f"  {best}")
    if steps.predict:
        only = dataclasses.replace(steps, train=False, evaluate=False)
        trained = load_task(RunFolder(best).require_config())  # with its own values, and the labels that it found
        FineTuning(trained, files, RunFolder(best), placement, "", only, values.predict_best, asked_keys=asked_keys).carry_out()


if __name__ == "__main__":
    run_main(main)
