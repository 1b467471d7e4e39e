"""Pre-trains BERT on records.

    python -m official_bert.run_pretraining --config=configs/pretrain/small.yaml --input_file='train-*.tfrecord' \
        --eval_input_file=held_out.tfrecord --vocab_file=vocab.txt --output_dir=runs/small --strategy=one_device

The same command again goes on where the run stopped. The flags of 2018's script work too.
"""

import os

from absl import flags

from official_bert.config import STRATEGIES, given_flags, load_config, run_main

FLAGS = flags.FLAGS
flags.DEFINE_string("config", None, "The run's YAML; --bert_config_file makes it optional.")
flags.DEFINE_multi_string("set", [], "Overrides, as in --set optimizer.learning_rate=1e-4.")
flags.DEFINE_string("input_file", "", "Training records: globs with commas between them.")
flags.DEFINE_string("eval_input_file", "", "Held-out records, evaluated during and after training.")
flags.DEFINE_string("output_dir", None, "Checkpoints, configuration and logs lie here.", required=True)
flags.DEFINE_string("init_checkpoint", "", "Weights (only) to begin with; a run that goes on does not look at it.")
flags.DEFINE_enum("strategy", "one_device", STRATEGIES, "Where to compute.")
flags.DEFINE_integer("num_cpu_devices", 0, "With --strategy=mirrored and no GPU: logical CPU devices.")
flags.DEFINE_string("worker_hosts", "", "With --strategy=multi_worker and no TF_CONFIG: host:port,host:port,...")
flags.DEFINE_integer("task_index", 0, "The number of this worker among --worker_hosts.")
flags.DEFINE_string("tpu_name", "", "With --strategy=tpu: the TPU's name; local on a TPU VM.")
flags.DEFINE_string("tpu_zone", "", "The TPU's zone.")
flags.DEFINE_string("gcp_project", "", "The TPU's project.")
flags.DEFINE_bool("use_tpu", False, "2018's name of --strategy=tpu.")
flags.DEFINE_enum("mode", "train", ("train", "eval", "eval_continuous"), "train (and evaluate where there is held-out data); "
                  "eval: the newest checkpoint; eval_continuous: each checkpoint that a run beside this one writes.")
flags.DEFINE_float("idle_seconds", 3600.0, "With --mode=eval_continuous: ends when no checkpoint has come for so long.")
flags.DEFINE_string("profile_steps", "", "first:last, as in 100:110: profiles these steps for TensorBoard.")
flags.DEFINE_bool("do_train", True, "Train.")
flags.DEFINE_bool("do_eval", False, "Evaluate at the end, on --eval_input_file or, as in 2018, on --input_file; with "
                  "--do_train=False the newest checkpoint. Writes eval_results.txt.")
# The flags of 2018 that set keys of the configuration (config.FLAG_KEYS).
flags.DEFINE_string("bert_config_file", None, "2018: the model's JSON; model.* of the configuration.")
flags.DEFINE_string("vocab_file", None, "tokenizer.vocab_file: kept beside the checkpoints for prediction and export.")
flags.DEFINE_bool("do_lower_case", None, "tokenizer.do_lower_case.")
flags.DEFINE_integer("max_seq_length", None, "options.max_seq_length.")
flags.DEFINE_integer("max_predictions_per_seq", None, "options.max_predictions_per_seq.")
flags.DEFINE_integer("train_batch_size", None, "training.batch_size.")
flags.DEFINE_integer("eval_batch_size", None, "training.eval_batch_size.")
flags.DEFINE_float("learning_rate", None, "optimizer.learning_rate.")
flags.DEFINE_integer("num_train_steps", None, "training.steps.")
flags.DEFINE_integer("num_warmup_steps", None, "optimizer.warmup_steps.")
flags.DEFINE_integer("save_checkpoints_steps", None, "training.save_every.")
flags.DEFINE_integer("iterations_per_loop", None, "training.steps_per_loop.")
flags.DEFINE_integer("max_eval_steps", None, "training.eval_steps.")


def main(_) -> None:
    """Trains, and prints the last evaluation."""
    from official_bert.training import evaluation, loop
    from official_bert.training.distribution import Placement
    from official_bert.training.task import DataFiles, load_task
    placement = Placement(strategy="tpu" if FLAGS.use_tpu else FLAGS.strategy, num_cpu_devices=FLAGS.num_cpu_devices,
                          worker_hosts=FLAGS.worker_hosts, task_index=FLAGS.task_index, tpu_name=FLAGS.tpu_name,
                          tpu_zone=FLAGS.tpu_zone, gcp_project=FLAGS.gcp_project)

    config = load_config(FLAGS.config, bert_config_file=FLAGS.bert_config_file, flags=given_flags(FLAGS),
                         overrides=FLAGS.set)
    eval_file = FLAGS.eval_input_file or (FLAGS.input_file if FLAGS.do_eval else "")
    task = load_task(config, DataFiles(train_file=FLAGS.input_file, eval_file=eval_file))
    if not FLAGS.do_train and not FLAGS.do_eval:
        raise ValueError("--do_train and --do_eval: expected at least one of them")
    if FLAGS.mode == "eval_continuous":
        metrics = evaluation.evaluate_continuously(task, FLAGS.output_dir, placement, FLAGS.idle_seconds)
    elif FLAGS.mode == "eval" or not FLAGS.do_train:
        metrics = evaluation.evaluate(task, FLAGS.output_dir, placement)
    else:
        metrics = loop.train(task, FLAGS.output_dir, placement, FLAGS.init_checkpoint, FLAGS.profile_steps)
    lines = [f"{name} = {value:.5f}" for name, value in metrics.items()]
    print("\n".join(lines))
    if FLAGS.do_eval:
        with open(os.path.join(FLAGS.output_dir, "eval_results.txt"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    print(f"checkpoints, configuration and log: {os.path.join(FLAGS.output_dir, '')}")


if __name__ == "__main__":
    run_main(main)
