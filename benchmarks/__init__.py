"""What made the files in results/: each module is a script, run from the root as `python -m benchmarks.NAME --help`."""
