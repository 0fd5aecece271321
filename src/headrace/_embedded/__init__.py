"""A private server of a directory, shared by the processes of one machine."""
