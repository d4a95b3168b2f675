"""A model of any size on one node: of random numbers, trained by the scripts of the 32B runs, checked and measured.

From the root of the checkout: scripts/try_32b_4gpu.sh
"""
