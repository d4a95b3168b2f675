"""What is measured, and the runs behind what is published."""
