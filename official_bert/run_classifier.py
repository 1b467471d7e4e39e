"""Lets `python -m official_bert.run_classifier` run commands/run_classifier.py."""

import runpy

if __name__ == "__main__":
    runpy.run_module("official_bert.commands.run_classifier", run_name="__main__", alter_sys=True)
