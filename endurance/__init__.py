"""Stress tests: kills, full disks, hostile files, several processes, long runs."""
