"""Pre-trains BERT on records.

    python -m official_bert.run_pretraining --config=configs/pretrain/small.yaml --input_file='train-*.tfrecord' \
        --eval_input_file=held_out.tfrecord --vocab_file=vocab.txt --output_dir=runs/small --strategy=one_device

The same command again continues a stopped run. The flags of 2018's script work too.
"""

from official_bert.command_line import given_flags, run_main

import math
import os

from absl import flags

from official_bert import command_line
from official_bert.config import load_config, nest
from official_bert.data.indexed_records import check_opens, check_readable
from official_bert.files import find_files
from official_bert.reports.metric_text import metric_lines
from official_bert.training.running import cluster

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", "", "Training records: comma-separated globs.")
flags.DEFINE_string("eval_input_file", "", "Held-out records, evaluated during and after training.")
flags.DEFINE_string("output_dir", "", "The folder for checkpoints, configuration and logs; not needed to evaluate --init_checkpoint.")
flags.DEFINE_string("init_checkpoint", "", "A checkpoint that gives the weights, the model's size, the vocabulary and the casing; not used "
                    "if a run is resumed.")
flags.DEFINE_enum("mode", "train", ("train", "eval", "eval_continuous"), "train (and evaluate if held-out records are given); eval: the "
                  "newest checkpoint, or --init_checkpoint if there is none; eval_continuous: each checkpoint that a run beside this one "
                  "writes.")
flags.DEFINE_float("idle_seconds", 3600.0, "With --mode=eval_continuous: ends if no new checkpoint appears for this long.")
flags.DEFINE_string("profile_steps", "", "first:last, such as 100:110: profiles these steps for TensorBoard.")
flags.DEFINE_bool("do_train", None, "Train; by default, unless --do_eval is given alone.")
flags.DEFINE_bool("do_eval", False, "Evaluate on --eval_input_file or, as in 2018, on --input_file: at the end of training, or the "
                  "newest checkpoint. Writes eval_results.txt.")
command_line.define_configuration()
command_line.define_placement()
command_line.define_hours()
command_line.define_resume()
command_line.define_cache()
command_line.define_2018(["vocab_file", "do_lower_case", "max_seq_length", "max_predictions_per_seq", "train_batch_size",
                           "eval_batch_size", "learning_rate", "num_train_steps", "num_warmup_steps", "save_checkpoints_steps",
                           "iterations_per_loop", "max_eval_steps"])
command_line.define_without_meaning(["master", "num_tpu_cores"])
NAMES_OF_2018 = {"masked_lm_accuracy": "mlm_accuracy", "masked_lm_loss": "mlm_loss",  # in eval_results.txt
                 "next_sentence_accuracy": "nsp_accuracy", "next_sentence_loss": "nsp_loss"}


def main(_) -> None:
    """Trains, and prints the last evaluation."""
    placement = cluster.Placement(**command_line.placement_values(FLAGS))
    called_as_in_2018 = FLAGS.bert_config_file and not FLAGS.config
    do_train = not FLAGS.do_eval if FLAGS.do_train is None else FLAGS.do_train
    command_line.refuse_unread(FLAGS, [
        (["profile_steps"], FLAGS.mode == "train" and do_train, "training (--mode=train)"),
        (["do_train"], FLAGS.mode == "train" or not FLAGS.do_train, "--mode=train"),
        (["idle_seconds"], FLAGS.mode == "eval_continuous", "--mode=eval_continuous")])
    asked = command_line.asked_values(FLAGS)
    evaluates = FLAGS.mode == "eval" or (FLAGS.mode == "train" and not do_train)
    if not FLAGS.output_dir and not (evaluates and FLAGS.init_checkpoint):
        raise ValueError("--output_dir: expected the folder of a run")
    if not do_train and not FLAGS.do_eval:
        raise ValueError("--do_train and --do_eval: expected at least one of them")
    records, cache_dir = list(filter(None, (FLAGS.input_file, FLAGS.eval_input_file))), os.path.expanduser(FLAGS.cache_dir)
    if placement.strategy != "multi_worker":  # whose workers tell each other
        check_opens(records)
    cluster.meet(placement, lambda: check_readable([path for patterns in records for path in find_files(patterns)], cache_dir))
    from official_bert.models.checkpoints import trained_weights
    from official_bert.models.run_folder import RunFolder, step_of
    from official_bert.tasks.loading import load_task
    from official_bert.training import evaluation, loop, run_config
    from official_bert.training.reporting import documents
    from official_bert.training.task import DataFiles
    checkpoint = run_config.first_values(asked, FLAGS.init_checkpoint, FLAGS.output_dir, FLAGS.vocab_file or "", pretraining=True)
    config = load_config(FLAGS.config, bert_config_file=FLAGS.bert_config_file, flags=given_flags(FLAGS), overrides=FLAGS.set,
                         checkpoint=checkpoint, report=print, count_entries=run_config.counter_of_entries(RunFolder(FLAGS.output_dir)),
                         defaults=nest(command_line.defaults_of_2018(FLAGS.set)) if called_as_in_2018 else None)
    if (evaluates or FLAGS.mode == "eval_continuous") and not (FLAGS.config or FLAGS.bert_config_file):
        from official_bert.interface.finetuning import config_of_run
        config = config_of_run(FLAGS.output_dir, FLAGS.init_checkpoint, None, ["task=pretraining", *FLAGS.set], given_flags(FLAGS),
                               print) or config
    run_config.check_read(config, run_config.asked_keys(given_flags(FLAGS), FLAGS.set))
    eval_file = FLAGS.eval_input_file or (FLAGS.input_file if FLAGS.do_eval else "")
    run, best = RunFolder(FLAGS.output_dir), config.training.answer_with == "best"
    elsewhere = ""
    if evaluates and not run.has_weights(best):
        elsewhere = trained_weights(run, FLAGS.init_checkpoint)
        config = run_config.with_objective_of(config, elsewhere)
    elif evaluates or FLAGS.mode == "eval_continuous":
        config = run_config.with_vocabulary_of(config, run, FLAGS.allow_changed_data)
    task, files = load_task(config), DataFiles(train_file=FLAGS.input_file, eval_file=eval_file,
                                              allow_changed_data=FLAGS.allow_changed_data,
                                              cache_dir=cache_dir)
    if FLAGS.init_checkpoint and not evaluates and task.options.first_weights != "random":
        raise ValueError("--init_checkpoint: expected config.options.first_weights random beside it, because the checkpoint gives the "
                         f"weights, got {task.options.first_weights}")
    if FLAGS.mode == "eval_continuous":
        metrics = evaluation.evaluate_continuously(task, files, FLAGS.output_dir, placement, FLAGS.idle_seconds)
    elif evaluates:
        metrics = evaluation.measure(task, files, FLAGS.output_dir, placement, elsewhere, best=best).metrics
    else:
        trained = loop.train(task, files, FLAGS.output_dir, placement, FLAGS.init_checkpoint, FLAGS.profile_steps)
        metrics = trained.metrics
        if cluster.is_first_worker(placement):
            documents.write_card(run, trained, files, print)
    for name in {"mlm_loss", "next_token_loss"} & set(metrics):
        metrics = {**metrics, name.replace("_loss", "_perplexity"): math.exp(min(metrics[name], 700.0))}
    print(metric_lines(metrics))
    if not FLAGS.output_dir:
        return
    if FLAGS.do_eval and cluster.is_first_worker(placement):
        if not evaluates:  # an evaluation says its step itself, if the checkpoint has one
            metrics = {"step": step_of(trained_weights(run, best=best)), **metrics}
        run.write_results(metrics | {theirs: metrics[ours] for theirs, ours in NAMES_OF_2018.items() if ours in metrics}
                          | ({"global_step": int(metrics["step"])} if "step" in metrics else {}))
    print(f"checkpoints, configuration and log: {os.path.join(FLAGS.output_dir, '')}")


if __name__ == "__main__":
    run_main(main)
