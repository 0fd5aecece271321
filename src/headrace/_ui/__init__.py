"""Pages and terminal: their actions and their texts."""
