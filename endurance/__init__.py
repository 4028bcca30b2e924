"""Runs that wear the library down on purpose: faults, hostile files, long hours."""
