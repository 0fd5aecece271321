"""Parts that the pages for the browser and those for the terminal share: actions, and words for times and numbers."""
