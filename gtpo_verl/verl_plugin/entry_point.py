"""What verl's plugin discovery imports. verl only loads the object an entry point names, it never calls it, so the
work is done at import (verl/__init__.py, `_ep.load()`)."""

from gtpo_verl.verl_plugin import hooks

hooks.install()
