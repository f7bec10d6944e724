"""Bundles: a trained policy, compressed, checked and packed for another machine."""
