"""Runs that wear the library down on purpose: hostile files, long work, interruptions."""
