"""The process of a run that composes, checks and trains: `gtpo-verl train` starts it under a supervisor."""
