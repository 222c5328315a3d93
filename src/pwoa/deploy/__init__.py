"""What a pruned network is shipped as, and how fast it is there."""
