"""Measurements: ratios taken in one run, since machines differ and are noisy."""
