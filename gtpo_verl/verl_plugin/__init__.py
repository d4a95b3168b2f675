"""What verl loads into its processes, in the places that verl offers for it.

verl loads the entry point (`gtpo_verl.verl_plugin.entry_point`, group `verl.plugins`) in every process that
imports it: the driver, every Ray worker, every FSDP rank. Nothing heavy is imported then; `hooks` says what happens
when verl's own modules are.
"""
