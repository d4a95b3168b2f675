"""A run's configuration: composed, resolved, checked by its keys alone, printed without secrets."""
