"""The `auto` searcher: several methods over one memory of trials."""
