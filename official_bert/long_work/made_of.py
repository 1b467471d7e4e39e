"""Is this the same work? What a result was made of is recorded beside it, in values that the user knows by their names;
a command that finds a result of other values refuses to continue with it.
"""

import json

from official_bert.long_work.provenance import changed_keys


def require_same(before: dict, now: dict, record: str, remedy: str) -> None:
    """Raises ValueError if a recorded value differs from that of now, which may have tuples for JSON's lists; None
    stands for a missing value.

    The message names the keys between the `record`, such as `out.work: holds work with`, and the `remedy`.
    """
    keys = dict.fromkeys([*before, *now])
    if changed := changed_keys(keys | before, json.loads(json.dumps(keys | now))):
        raise ValueError(f"{record} another {' and another '.join(changed)}; {remedy}")
