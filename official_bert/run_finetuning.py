"""Lets `python -m official_bert.run_finetuning` run commands/run_finetuning.py."""

import runpy

if __name__ == "__main__":
    runpy.run_module("official_bert.commands.run_finetuning", run_name="__main__", alter_sys=True)
