"""Progress of training and playing on a terminal."""
