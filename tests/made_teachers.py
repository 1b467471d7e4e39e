"""Teachers: runs that hold the first weights of a task's model, as if they had been trained."""

import numpy as np

from official_bert.models.checkpoints import weights_checkpoint
from official_bert.run_folder import RunFolder
from official_bert.tasks.loading import load_task


def write_teacher(folder, config, seed=1):
    """Writes a run with weights drawn from a seed; returns its path and its model."""
    task = load_task(config)
    model = task.build_model()
    for number, weight in enumerate(model.weights):
        if weight.dtype == "float32" and not weight.path.endswith(("gamma", "beta")):
            generator = np.random.default_rng((seed, number))
            weight.assign(generator.normal(0.0, 0.3, weight.shape).astype("float32"))
    run = RunFolder(str(folder))
    run.make()
    weights_checkpoint(model).write(run.checkpoint(1))
    run.write_config(config)
    return run.path, model
