"""`python -m pwoa` is `pwoa`."""

from pwoa.cli import main

main()
