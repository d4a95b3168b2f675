"""What all processes of a run share: names in shared memory, folders of caches, and where the run writes."""
