"""The protocol on the wire, without IO. It has keys, scripts, operations as values, and the readers
of replies."""
