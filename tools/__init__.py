"""Tools for data, checkpoints and plots: `python tools/NAME.py`, or, if installed, `python -m
official_bert.tools.NAME`.
"""
