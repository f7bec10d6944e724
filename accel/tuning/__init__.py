"""Which compression level each actor gets, and the mismatch measurements behind it."""
