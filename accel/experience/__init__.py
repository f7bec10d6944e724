"""Experience: unrolls, batches, rewards."""
