"""The protocol on the wire: keys, scripts, operations as values, replies. No IO."""
