"""Baselines with the interface of DMPS: Deep Sets, Set Transformer, attention MIL, PointNet++."""
