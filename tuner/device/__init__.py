"""Where trials run: a GPU, or measurements recorded on one."""
