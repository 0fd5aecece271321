"""What both colours share but waiting."""
