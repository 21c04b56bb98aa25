"""Which configs to try next: one file a searcher, all behind ask and tell."""
