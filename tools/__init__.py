"""The data, checkpoint and plotting tools: `python tools/NAME.py`, or in an installation `python -m
official_bert.tools.NAME`.
"""
