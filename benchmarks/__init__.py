"""Speed, measured as a ratio of two things in one run."""
