"""Lets `python -m official_bert.serve` run commands/serve.py."""

import runpy

if __name__ == "__main__":
    runpy.run_module("official_bert.commands.serve", run_name="__main__", alter_sys=True)
