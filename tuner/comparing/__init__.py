"""Search methods compared on recorded spaces: replay, scores and curves."""
