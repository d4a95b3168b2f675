"""From verl's metrics files to figures, tables and the progress display."""
