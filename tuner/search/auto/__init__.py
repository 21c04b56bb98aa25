"""The `auto` searcher: a Gaussian process over a memory of trials."""
