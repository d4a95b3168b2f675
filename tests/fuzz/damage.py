"""Damage to files, and JSON of any form, for all that is read."""

from __future__ import annotations

import json

from hypothesis import strategies as st

# Where (as a share of the length), what is done there, and with which bytes.
DAMAGE = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["flip", "cut", "insert", "drop", "zero", "repeat"]),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=3,
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from([10**400, "\ud800", "1"])
)
_OBJECTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(max_size=5), st.sampled_from(["step", "data", "prompt", "answer"])), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
JSON = _OBJECTS.map(lambda made: json.dumps(made).encode())


def damaged(content: bytes, damage: list[tuple[float, str, bytes]]) -> bytes:
    """The content after each damage in turn."""
    for share, kind, data in damage:
        place = int(share * len(content))
        length = len(data)
        if kind == "flip":
            part = content[place : place + 1]
            content = content[:place] + bytes(byte ^ (data[0] or 255) for byte in part) + content[place + 1 :]
        elif kind == "cut":
            content = content[:place]
        elif kind == "insert":
            content = content[:place] + data + content[place:]
        elif kind == "drop":
            content = content[:place] + content[place + length * 7 :]
        elif kind == "zero":
            content = content[:place] + bytes(len(content[place : place + length])) + content[place + length :]
        else:
            content = content[:place] + content[place : place + 64] * 2 + content[place + 64 :]
    return content
