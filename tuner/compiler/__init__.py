"""Source to cubin and its resource usage, in killable processes, with a content-addressed cache."""
