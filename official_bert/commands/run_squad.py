"""Fine-tunes on questions in SQuAD's format and answers them, with the flags of 2018's `run_squad.py`.

    python -m official_bert.run_squad --bert_config_file=bert_config.json --vocab_file=vocab.txt --init_checkpoint=bert_model.ckpt \
        --do_train --train_file=train-v1.1.json --do_predict --predict_file=dev-v1.1.json --output_dir=runs/squad

Besides 2018's three prediction files it writes the official metrics (`eval_results.txt`) if the file has gold answers. A later
--do_predict needs only the run's folder. --ensemble=runs/a,runs/b averages the logits of several runs. A second fine-tuning
starts from the first with --init_checkpoint=FOLDER. --eval_files='xquad.*.json' measures the trained model on files in several languages.
"""

from official_bert.command_line import given_flags, run_main

import dataclasses
from typing import Any

from absl import flags, logging

from official_bert import command_line
from official_bert.config import AS_IN_2018, FINE_TUNING, Config, build, load_config, merge, nest, parse_override, to_dict
from official_bert.files import absolute, find_files
from official_bert.training.reporting.metric_text import metric_lines

FLAGS = flags.FLAGS
flags.DEFINE_string("output_dir", None, "The folder for checkpoints, configuration and predictions.", required=True)
flags.DEFINE_string("train_file", "", "SQuAD's JSON for training, such as train-v1.1.json.")
flags.DEFINE_string("predict_file", "", "SQuAD's JSON for predictions, such as dev-v1.1.json or test-v1.1.json.")
flags.DEFINE_string("init_checkpoint", "", "A checkpoint to take the weights from: pre-trained, or a fine-tuned run's folder.")
flags.DEFINE_string("eval_files", "", "Files of questions in several languages, which their names tell: paths and globs, with commas "
                    "between. Prints a table, and writes languages.json and languages.md.")
flags.DEFINE_bool("do_train", False, "Train.")
flags.DEFINE_bool("do_predict", False, "Answer the questions of --predict_file with the newest checkpoint of --output_dir, or with its "
                  "best one if training.answer_with is best.")
flags.DEFINE_bool("allow_same_data", False, "Only warn if the evaluation data are the training data, for smoke tests.")
flags.DEFINE_string("ensemble", "", "Comma-separated output folders of finished runs: their logits are averaged.")
flags.DEFINE_string("cache_dir", "", "A folder that keeps tokenized training features between runs.")
command_line.define_configuration()
command_line.define_placement()
command_line.define_resume()
command_line.define_2018(["vocab_file", "do_lower_case", "max_seq_length", "doc_stride", "max_query_length", "max_answer_length",
                           "n_best_size", "version_2_with_negative", "null_score_diff_threshold", "train_batch_size", "learning_rate",
                           "num_train_epochs", "warmup_proportion", "save_checkpoints_steps", "iterations_per_loop"])
command_line.define_without_meaning(["master", "num_tpu_cores", "verbose_logging"])
flags.DEFINE_integer("predict_batch_size", None, "training.eval_batch_size (32; 2018: 8).")
ANSWERS_OF_2018 = merge(AS_IN_2018, {"options": {"answer_alignment": 2018}})


def main(_) -> None:
    """Trains, answers, or both."""
    from official_bert.models.run_folder import RunFolder
    from official_bert.training.distribution import Placement, answering_scope, is_first_worker
    from official_bert.training.task import DataFiles
    if not (FLAGS.do_train or FLAGS.do_predict or FLAGS.eval_files):
        raise ValueError("expected --do_train, --do_predict or both, got neither")
    if FLAGS.do_train and not FLAGS.train_file:
        raise ValueError("--do_train: expected --train_file")
    if FLAGS.do_predict and not FLAGS.predict_file:
        raise ValueError("--do_predict: expected --predict_file")
    if FLAGS.do_predict:
        DataFiles(train_file=FLAGS.train_file, predict_file=FLAGS.predict_file).check_not_answers(FLAGS.output_dir)
    if FLAGS.ensemble and not FLAGS.do_predict:
        raise ValueError("--ensemble: expected --do_predict beside it")
    for folder in _ensemble():
        if not (FLAGS.do_train and absolute(folder) == absolute(FLAGS.output_dir)):
            RunFolder.require(folder)
    if FLAGS.eval_files and FLAGS.ensemble:
        raise ValueError("--eval_files: expected no --ensemble beside it")
    files = find_files(FLAGS.eval_files, "--eval_files") if FLAGS.eval_files else []
    placement = Placement(**command_line.placement_values(FLAGS))
    if FLAGS.do_train:
        train(placement, files)
    if not is_first_worker(placement):
        return
    with answering_scope(placement):
        if FLAGS.do_predict:
            predict()
        if files:
            measure(files)


def train(placement, eval_files: list[str]) -> None:
    """Fine-tunes into --output_dir, or continues the run there; first checks what is measured afterwards."""
    from official_bert.models.checkpoints import last_weights
    from official_bert.models.run_folder import RunFolder
    from official_bert.tasks.loading import load_task
    from official_bert.tasks.squad import languages, metrics, reading
    from official_bert.training import loop, runs
    from official_bert.training.distribution import is_first_worker
    from official_bert.training.task import DataFiles, Steps
    config = _config()
    runs.check_read(config, runs.asked_keys(given_flags(FLAGS), FLAGS.set))
    task = load_task(config)
    version_2 = task.options.version_2_with_negative
    languages.check(eval_files, version_2)
    if FLAGS.do_predict:  # measures them after training
        asked = reading.read_squad(FLAGS.predict_file).articles
        if metrics.has_gold_answers(asked, version_2):
            metrics.check_answers(asked, version_2, FLAGS.predict_file)
    files = DataFiles(train_file=FLAGS.train_file, eval_file=FLAGS.predict_file, predict_file=FLAGS.predict_file,
                      cache_dir=FLAGS.cache_dir, allow_same_data=FLAGS.allow_same_data, allow_changed_data=FLAGS.allow_changed_data)
    steps = Steps(evaluate=config.training.eval_every > 0 or config.training.eval_epochs > 0)
    begun_with = last_weights(RunFolder(FLAGS.output_dir))
    measured = loop.train(task, files, FLAGS.output_dir, placement, FLAGS.init_checkpoint, steps=steps).metrics
    if is_first_worker(placement):
        runs.forget_tuned_for(begun_with, measured, RunFolder(FLAGS.output_dir))


def predict() -> None:
    """Answers the questions of --predict_file; writes the answers and, if there are gold answers, the metrics."""
    from official_bert.models.run_folder import RunFolder
    from official_bert.tasks.squad.task import average_logits
    from official_bert.training import runs
    from official_bert.training.evaluation import predict as predict_rows
    from official_bert.training.task import DataFiles, Steps
    questions: Any = None  # of the task: its `Questions`
    found = []
    for folder in _ensemble() or [FLAGS.output_dir]:
        trained, model = _trained(folder)
        if questions is None:
            task = _as_asked(trained)
            files = DataFiles(predict_file=FLAGS.predict_file)
            questions = task.resolve(files, Steps(train=False, evaluate=False, predict=True), model).tests
            if questions.have_gold_answers:
                questions.check_answers()
        task.check_same_rows(trained, folder)
        found.append(predict_rows(task, model, questions.source))
    rows = average_logits(found)
    if not questions.have_gold_answers and not FLAGS.ensemble:
        questions = _with_stored_threshold(questions)
    for path in questions.write(rows, FLAGS.output_dir):
        print(path)
    if questions.have_gold_answers:
        metrics = questions.evaluate(rows)
        run = RunFolder(FLAGS.output_dir)
        run.write_results(metrics)
        if not FLAGS.ensemble and run.has_begun:  # else the weights lie elsewhere
            runs.store_tuned(task, metrics, run, run.recorded_config().training.answer_with == "best")
        print(metric_lines(metrics))


def measure(eval_files: list[str]) -> None:
    """Answers and measures the questions of files in several languages; writes the answers and a table."""
    from official_bert.tasks.squad import languages
    trained, model = _trained(FLAGS.output_dir)
    task = _as_asked(trained)
    task.check_same_rows(trained, FLAGS.output_dir)
    if not FLAGS.do_train:  # else `train` did
        languages.check(eval_files, task.options.version_2_with_negative)
    rows = languages.evaluate(task, model, eval_files, FLAGS.output_dir, logging.warning)
    print(languages.table(rows), end="")
    print("\n".join(languages.write(rows, FLAGS.output_dir)))


def _as_asked(trained):
    """Returns the task of a trained model with the options of the command line."""
    from official_bert.tasks.loading import load_task
    config = to_dict(trained.config)
    flagged = nest({key: value for key, value in given_flags(FLAGS).items() if value != ""})
    for values in (flagged, *map(parse_override, _overrides())):
        config = merge(config, values)
    asked = build(Config, config)
    _check_task(asked)
    return load_task(asked)


def _with_stored_threshold(questions):
    """Returns questions that nobody has answered, with the threshold for no answer that was tuned for the weights that answer, unless
    the command line gives one.
    """
    from official_bert.models.run_folder import RunFolder
    from official_bert.training import runs
    found = runs.tuned_at(FLAGS.output_dir if RunFolder(FLAGS.output_dir).has_begun else FLAGS.init_checkpoint)
    tuned = runs.with_tuned(questions.task, found, runs.asked_keys(given_flags(FLAGS), FLAGS.set))
    if tuned is not questions.task:
        print(f"null_score_diff_threshold {tuned.options.null_score_diff_threshold:.4f}, tuned in evaluation")
    return dataclasses.replace(questions, task=tuned)


def _ensemble() -> list[str]:
    """Returns the folders whose logits are averaged."""
    return [folder for folder in FLAGS.ensemble.split(",") if folder]


def _trained(folder: str):
    """Returns the task and the model of a run's folder or, as 2018 allows, of a fine-tuned --init_checkpoint of any format."""
    from official_bert.models.run_folder import RunFolder
    from official_bert.tasks.loading import load_task, restore_for_inference
    from official_bert.training.evaluation import take_all
    if RunFolder(folder).has_begun or FLAGS.ensemble or FLAGS.do_train or not FLAGS.init_checkpoint:
        stored = RunFolder.require(folder).config()
        assert stored is not None
        return load_task(stored), restore_for_inference(folder)[1]
    task = load_task(_config())
    model = task.build_model()
    take_all(task, model, FLAGS.init_checkpoint)
    return task, model


def _config() -> Config:
    """Returns the configuration of the flags, --config and the checkpoint."""
    from official_bert.training import runs
    overrides = _overrides() + ([] if FLAGS.config else ["task=squad"])
    config = load_config(FLAGS.config, bert_config_file=FLAGS.bert_config_file, flags=given_flags(FLAGS), overrides=overrides,
                         defaults=merge({} if FLAGS.config else FINE_TUNING, ANSWERS_OF_2018), report=print,
                         checkpoint=runs.checkpoint_values(FLAGS.init_checkpoint, FLAGS.output_dir, FLAGS.vocab_file or ""))
    _check_task(config)
    runs.require_vocabulary(config)
    return config


def _overrides() -> list[str]:
    batch = [] if FLAGS.predict_batch_size is None else [f"training.eval_batch_size={FLAGS.predict_batch_size}"]
    return batch + FLAGS.set


def _check_task(config: Config) -> None:
    if config.task != "squad":
        raise ValueError(f"config.task: expected squad, got {config.task!r}")
    if config.options.get("null_score_diff_threshold") and not config.options.get("version_2_with_negative"):
        raise ValueError("--null_score_diff_threshold: expected --version_2_with_negative beside it, else every question is answered")


if __name__ == "__main__":
    run_main(main)
