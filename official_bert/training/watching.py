"""What a run tells: console lines with ETA, a JSON-lines log, TensorBoard."""

import json
import os
import time
from collections.abc import Mapping

import tensorflow as tf

from official_bert.training.checkpointing import LOG_FILE

CONSOLE = ("loss", "mlm_accuracy", "nsp_accuracy", "accuracy")


class Watcher:
    """Writes metrics of training and evaluation; silent (`enabled=False`) on workers other than the chief."""

    def __init__(self, output_dir: str, total_steps: int, enabled: bool = True):
        self.total_steps, self.enabled = total_steps, enabled
        self.began = time.monotonic()
        self.first_step: int | None = None
        if enabled:
            self.log = open(os.path.join(output_dir, LOG_FILE), "a", encoding="utf-8")  # noqa: SIM115 (close)
            self.board = tf.summary.create_file_writer(os.path.join(output_dir, "tensorboard"))

    def training(self, step: int, metrics: Mapping[str, float], steps_per_second: float) -> None:
        """Takes the means of the metrics since the last call, at `step` steps done."""
        left = (self.total_steps - step) / steps_per_second if steps_per_second else 0
        parts = [f"{name} {metrics[name]:.4f}" for name in CONSOLE if name in metrics]
        self.say(f"step {step}/{self.total_steps}  {'  '.join(parts)}  lr {metrics['learning_rate']:.3g}  "
                 f"|g| {metrics['gradient_norm']:.3g}  {metrics['sequences_per_second']:.1f} seq/s  "
                 f"{metrics['tokens_per_second']:.0f} tokens/s  ETA {_duration(left)}")
        self._write("train", step, metrics)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes the metrics of an evaluation of the weights after `step` steps."""
        self.say(f"evaluation at step {step}:  " + "  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        self._write("eval", step, metrics)

    def say(self, line: str) -> None:
        """A line on the console."""
        if self.enabled:
            print(line, flush=True)

    def _write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        if not self.enabled:
            return
        row = {"step": step, "time": round(time.time(), 3)} | {f"{kind}/{name}": value for name, value in metrics.items()}
        self.log.write(json.dumps(row) + "\n")
        self.log.flush()
        with self.board.as_default(step=step):
            for name, value in metrics.items():
                tf.summary.scalar(f"{kind}/{name}", value)
        self.board.flush()

    def close(self) -> None:
        """Closes the files."""
        if self.enabled:
            self.log.close()
            self.board.close()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
