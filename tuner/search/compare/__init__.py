"""Search methods compared on recorded spaces."""
