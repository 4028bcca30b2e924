"""What the package is made of and comes with: distributions, bill of materials, licences, known faults."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
# What users may install; docs, dev and peers serve those who work on the library.
RUNTIME = ("data", "neighbours", "plots", "sklearn", "tables", "export", "cluster", "tensorboard")
