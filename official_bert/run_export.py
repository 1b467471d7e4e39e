"""Lets `python -m official_bert.run_export` run commands/run_export.py."""

import runpy

if __name__ == "__main__":
    runpy.run_module("official_bert.commands.run_export", run_name="__main__", alter_sys=True)
