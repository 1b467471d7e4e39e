"""Lets `python -m official_bert.run_pretraining` run commands/run_pretraining.py."""

import runpy

if __name__ == "__main__":
    runpy.run_module("official_bert.commands.run_pretraining", run_name="__main__", alter_sys=True)
