"""What a run leaves on disk: checkpoints, models made of them, metrics across resumes, trackers' files."""
