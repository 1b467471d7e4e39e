import re
import subprocess

import pytest


def lower(root, *arguments):
    python = root / ".venv-tpu/bin/python"
    if not python.exists():
        pytest.skip("needs the environment of `make venv-tpu`")
    return subprocess.run([str(python), str(root / "tools/lower_for_tpu.py"), f"--config={root}/configs/pretrain/tiny.yaml",
                           "--set=training.batch_size=8", *arguments], check=False, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("--set=training.accumulation_steps=2", "--set=training.precision=bfloat16"),
                                       ("--set=training.recompute=true", "--set=optimizer.name=lamb")])
def test_the_whole_pretraining_step_lowers_to_tpu_hlo(root, tmp_path, overrides):
    done = lower(root, f"--hlo_file={tmp_path}/step.hlo", *overrides)
    assert done.returncode == 0, done.stderr
    assert re.search(r"pretraining train step: [\d,]+ bytes of HLO, [\d,]+ operations", done.stdout)
    assert "pretraining evaluation step: " in done.stdout
    hlo = (tmp_path / "step.hlo").read_text()
    # The step is whole: products of forward and backward, square roots of the update, random bits of dropout.
    assert hlo.count(" dot(") > 30 and " sqrt(" in hlo and ("rng-bit-generator(" in hlo or " shift-left(" in hlo)
    assert "parameter_replication" in hlo and "<=" not in hlo


@pytest.mark.slow
def test_a_platform_that_is_not_there_is_told(root):
    done = lower(root, "--platform=TPV")
    assert done.returncode == 1 and "error: cannot be lowered for TPV" in done.stderr and "Traceback" not in done.stderr
