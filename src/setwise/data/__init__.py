"""Where sets come from. Loaders and samplers know no model."""
