"""Lets `python -m official_bert.extract_features` run commands/extract_features.py."""

import runpy

if __name__ == "__main__":
    runpy.run_module("official_bert.commands.extract_features", run_name="__main__", alter_sys=True)
