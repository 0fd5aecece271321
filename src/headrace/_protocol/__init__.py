"""What crosses the wire: keys, scripts, operations as values, replies. No IO."""
