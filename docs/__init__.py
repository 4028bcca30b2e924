"""Documentation, and the scripts that generate its tables."""
