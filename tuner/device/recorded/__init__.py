"""Answer from measurements made earlier, ours or those that other programs wrote."""
