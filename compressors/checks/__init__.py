"""Checks of an artifact: agreement with the policy, and which kernels really run."""
