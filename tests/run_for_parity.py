"""A process of the parity test: 20 steps on some devices; writes the losses and the weights.

    run_for_parity.py RECORDS OUTPUT.npz STRATEGY CPU_DEVICES ACCUMULATION [HOSTS INDEX]
"""

import sys

import keras
import numpy as np
import tensorflow as tf
from made_pretraining import make_config, make_task

from official_bert.training import distribution
from official_bert.training.distribution import Placement
from official_bert.training.trainer import Trainer


def main(records, output, strategy, devices, accumulation, hosts="", index="0"):
    """Trains from the same seed whatever the devices are."""
    placement = Placement(strategy=strategy, num_cpu_devices=int(devices), worker_hosts=hosts, task_index=int(index))
    made = distribution.make_strategy(placement)
    config = make_config(model={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
                         training={"accumulation_steps": int(accumulation)})
    task = make_task(config, records)
    keras.utils.set_random_seed(config.seed)
    trainer = Trainer(task, made, 20)
    iterator = iter(distribution.distribute(task.train_source(), made))
    rows = np.concatenate([trainer.run_steps(iterator, tf.constant(10)).numpy() for _ in range(2)])
    weights = {f"weight_{number}": weight.numpy() for number, weight in enumerate(trainer.weights)}
    np.savez(output, losses=rows[:, 0], replicas=made.num_replicas_in_sync, **weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
