"""A run's configuration: composed, resolved, printed without secrets; checked, with the files that it names."""
