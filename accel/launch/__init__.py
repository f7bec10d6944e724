"""Composes a job from a configuration: roles, places, carriers. Starts mpirun where nobody has."""
