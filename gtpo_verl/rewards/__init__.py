"""Rewards of problems that are not made here, such as DAPO-Math-17k. Importing the package imports nothing else."""
