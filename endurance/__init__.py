"""Faults, hostile files and long hours: what happens to training and data under them."""
