"""The picture of credit: what each token of a response was given, and why, as a page in a browser.

`credit` draws tensors that you have, and needs neither verl nor Ray; `gtpo-verl inspect` draws what a run dumped.
"""

from gtpo_verl.inspect.page import Page
from gtpo_verl.inspect.responses import InspectError
from gtpo_verl.inspect.tensors import credit

__all__ = ["InspectError", "Page", "credit"]
