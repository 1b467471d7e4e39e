"""Lets `python -m official_bert.run_squad` run commands/run_squad.py."""

import runpy

if __name__ == "__main__":
    runpy.run_module("official_bert.commands.run_squad", run_name="__main__", alter_sys=True)
