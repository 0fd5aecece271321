"""Values that `headrace.inspect` shows. Times are seconds of the server's clock. Texts are bounded
and printable."""
