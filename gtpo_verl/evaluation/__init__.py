"""Models on held-out problems: sampled with vLLM, graded by the reward that they are trained with, compared.

`gtpo_verl.evaluation.command` is the command line's ``gtpo-verl eval``; docs/eval.md describes it.
"""
