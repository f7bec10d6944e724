"""The machine and its process: cores, signals, files, optional packages, timing in turns."""
