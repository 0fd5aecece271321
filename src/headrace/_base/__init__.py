"""All that both colours share but waiting."""
