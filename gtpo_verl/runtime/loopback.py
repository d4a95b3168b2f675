"""A proxy that the shell names is for the world outside: this machine is reached directly."""

import os

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_HERE = ("localhost", "127.0.0.1", "::1")


def direct_loopback() -> dict[str, str]:
    """`NO_PROXY` and `no_proxy` with this machine in them, beside what the user has put there; nothing where no proxy
    is named."""
    if not any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        return {}
    given = [entry for name in ("no_proxy", "NO_PROXY") for entry in os.environ.get(name, "").split(",")]
    names = dict.fromkeys([entry.strip() for entry in given if entry.strip()])
    if "*" in names:
        return {}
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join([*names, *(name for name in _HERE if name not in names)]))
