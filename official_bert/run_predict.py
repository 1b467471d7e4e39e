"""Lets `python -m official_bert.run_predict` run commands/run_predict.py."""

import runpy

if __name__ == "__main__":
    runpy.run_module("official_bert.commands.run_predict", run_name="__main__", alter_sys=True)
