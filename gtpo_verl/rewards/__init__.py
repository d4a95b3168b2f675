"""Rewards for the data sets of ``gtpo-verl data``. Importing the package imports nothing else."""
