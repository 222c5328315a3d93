"""What people look at: tables, plots, and what is in a file or a run."""
