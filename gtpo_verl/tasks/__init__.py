"""Tasks to train on: data sets, their rewards, and the small models that start them.

Kept free of imports, so that verl's reward workers load ``gtpo_verl.tasks.rewards`` without torch or transformers.
"""
