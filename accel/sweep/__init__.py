"""Searches of compression policies with Optuna: after training, in training, and by populations."""
